// The kernel for every processor that the compiler knows.
#define PREFOLD_ISA prefold_portable
#include "kernel.inl"

namespace prefold {
const Kernel kPortableKernel = {"portable", kBatchRows, prefold_portable::write,
                                prefold_portable::attend, prefold_portable::merge,
                                prefold_portable::finish};
}
