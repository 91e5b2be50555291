// Activations for x86-64 processors with AVX2 and FMA.
#define PREFOLD_AVX2
#define PREFOLD_ISA prefold_activation_avx2
#include "activation.inl"

namespace prefold {
const ActivationKernel kAvx2Activation = {"avx2", prefold_activation_avx2::apply,
                                        prefold_activation_avx2::apply_narrow};
}
