// Bindings of the packed linear layer and the activations.
#pragma once

#include <nanobind/nanobind.h>

namespace prefold {

void bind_linear(nanobind::module_& module);

}  // namespace prefold
