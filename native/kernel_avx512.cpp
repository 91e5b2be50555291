// The kernel for x86-64 processors with AVX-512.
#define PREFOLD_AVX512
#define PREFOLD_ISA prefold_avx512
#include "kernel.inl"

namespace prefold {
const Kernel kAvx512Kernel = {"avx512", kBatchRows, prefold_avx512::write,
                              prefold_avx512::attend, prefold_avx512::merge,
                              prefold_avx512::finish};
}
