// The packed linear layer for every processor that the compiler knows.
#define PREFOLD_ISA prefold_linear_portable
#include "linear.inl"

namespace prefold {
const LinearKernel kPortableLinear = {"portable", prefold_linear_portable::multiply};
}
