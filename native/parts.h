// How threads divide matrix products among them, and widen what they multiply.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "linear.h"

namespace prefold {

// Rows of a part, at least, where a product is cut along rows.
constexpr int64_t kLeastRows = 32;

// Weights to read, and multiplications, that are not worth another thread.
constexpr int64_t kFewWeights = 1 << 16;
constexpr int64_t kFewProducts = 1 << 21;

inline void widen(const uint16_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = uint32_t(from[i]) << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

inline Range share(int64_t count, int64_t part, int64_t num_parts) {
  return {count * part / num_parts, count * (part + 1) / num_parts};
}

inline bool is_little(int64_t num_weights, int64_t num_rows) {
  return num_weights < kFewWeights && num_rows * num_weights < kFewProducts;
}

// Calls work(rows, panels) for the parts of one thread of a team. Cut along panels, so that
// weights are read once, unless there are too few of them.
template <typename Work>
void for_own_parts(int64_t num_panels, int64_t num_rows, int thread, int team, Work work) {
  const int64_t by_rows = num_panels >= 4 * team
                              ? 1
                              : std::clamp<int64_t>(num_rows / kLeastRows, 1, team);
  const int64_t by_panels = std::clamp<int64_t>(team / by_rows, 1, num_panels);
  for (int64_t part = thread; part < by_panels * by_rows; part += team) {
    work(share(num_rows, part / by_panels, by_rows),
         share(num_panels, part % by_panels, by_panels));
  }
}

}  // namespace prefold
