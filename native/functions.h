// Activations by their names.
#pragma once

#include <string>

#include "activation.h"
#include "checks.h"

namespace prefold {

constexpr const ActivationKernel* kActivationKernels[] = {
#if defined(PREFOLD_HAS_X86)
    &kAvx512Activation,
    &kAvx2Activation,
#endif
    &kPortableActivation,
};

inline Function function_of(const std::string& name) {
  if (name == "silu") return Function::silu;
  if (name == "gelu") return Function::gelu;
  if (name == "gelu_tanh") return Function::gelu_tanh;
  require(name == "quick_gelu", name.c_str(), " is no activation");
  return Function::quick_gelu;
}

}  // namespace prefold
