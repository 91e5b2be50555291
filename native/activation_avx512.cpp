// Activations for x86-64 processors with AVX-512.
#define PREFOLD_AVX512
#define PREFOLD_ISA prefold_activation_avx512
#include "activation.inl"

namespace prefold {
const ActivationKernel kAvx512Activation = {"avx512", prefold_activation_avx512::apply,
                                        prefold_activation_avx512::apply_narrow};
}
