// The packed linear layer for x86-64 processors with AVX-512.
#define PREFOLD_AVX512
#define PREFOLD_ISA prefold_linear_avx512
#include "linear.inl"

namespace prefold {
const LinearKernel kAvx512Linear = {"avx512", prefold_linear_avx512::multiply};
}
