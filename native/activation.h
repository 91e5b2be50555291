// Row-wise activations: a number's result depends on the number alone.
#pragma once

#include <cstdint>

#include "linear.h"

namespace prefold {

// silu: x * sigmoid(x). gelu: x * Phi(x). gelu_tanh: its approximation by tanh.
// quick_gelu: x * sigmoid(1.702 * x).
enum class Function { silu, gelu, gelu_tanh, quick_gelu };

struct ActivationKernel {
  const char* name;
  void (*apply)(Function, const float* from, int64_t count, float* to);
  // bfloat16, computed as float32.
  void (*apply_narrow)(Function, const uint16_t* from, int64_t count, uint16_t* to);
};

extern const ActivationKernel kPortableActivation;
extern const ActivationKernel kAvx2Activation;
extern const ActivationKernel kAvx512Activation;

// Applies a function to `count` numbers of one type.
void activate(const ActivationKernel& kernel, Function function, Element element,
              const void* from, int64_t count, void* to, int num_threads);

}  // namespace prefold
