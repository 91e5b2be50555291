// The kernel for x86-64 processors with AMX.
#define PREFOLD_AVX512
#define PREFOLD_AMX
#define PREFOLD_ISA prefold_amx
#include "kernel.inl"

namespace prefold {
const Kernel kAmxKernel = {"amx", prefold_amx::kHeadRows, prefold_amx::write,
                           prefold_amx::attend, prefold_amx::merge, prefold_amx::finish};
}
