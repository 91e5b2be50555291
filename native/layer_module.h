// Bindings of what a decoder layer does in one go.
#pragma once

#include <nanobind/nanobind.h>

namespace prefold {

void bind_layer(nanobind::module_& module);

}  // namespace prefold
