// The kernel for x86-64 processors with AVX2, FMA and F16C.
#define PREFOLD_AVX2
#define PREFOLD_ISA prefold_avx2
#include "kernel.inl"

namespace prefold {
const Kernel kAvx2Kernel = {"avx2", kBatchRows, prefold_avx2::write,
                            prefold_avx2::attend, prefold_avx2::merge,
                            prefold_avx2::finish};
}
