// Whether numbers are numbers.
#pragma once

#include <cstdint>
#include <cstring>

namespace prefold {

inline bool are_finite(const float* numbers, int64_t count) {
  constexpr uint32_t kExponent = 0x7f800000u;
  bool is_finite = true;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, numbers + i, sizeof bits);
    is_finite &= (bits & kExponent) != kExponent;
  }
  return is_finite;
}

}  // namespace prefold
