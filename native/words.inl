// How a panel's numbers lie in memory. Part of the packed linear layer, compiled once for each
// instruction set.
#pragma once

#include "linear.h"
#include "simd.h"

namespace PREFOLD_ISA {

using namespace prefold;

// Two bfloat16 in 32 bits, the first in the lower half.
PREFOLD_INLINE Wide load_wide(const uint32_t* from) {
  Ints bits;
  std::memcpy(&bits, from, sizeof bits);
  return join(as_floats(bits << 16), as_floats(bits & int32_t(0xffff0000u)));
}

// Words of a panel for one input.
template <typename Word> struct Words {
  static constexpr int count = kPanelOutputs;
};
template <> struct Words<uint32_t> {
  static constexpr int count = kPanelOutputs / 2;
};

}  // namespace PREFOLD_ISA
