// The packed linear layer for x86-64 processors with AVX2 and FMA.
#define PREFOLD_AVX2
#define PREFOLD_ISA prefold_linear_avx2
#include "linear.inl"

namespace prefold {
const LinearKernel kAvx2Linear = {"avx2", prefold_linear_avx2::multiply};
}
