// Chains of units, shared out among threads as they go.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "schedule.h"

namespace prefold {

// One thread follows a chain from its first unit on, so that it can merge parts as it goes. Those
// that find no chain to follow take units from the ends of others: few parts, which have to be
// stored, go from one processor's cache to another's.
class Claims {
 public:
  static constexpr int kNothing = -1;

  explicit Claims(const std::vector<Chain>& chains) : left_(chains.size()) {
    for (size_t i = 0; i < chains.size(); ++i) {
      left_[i].store(pack(chains[i].first_unit, chains[i].end_unit),
                     std::memory_order_relaxed);
    }
  }

  // Returns a chain that nobody follows yet.
  int take_chain() {
    const int chain = next_.fetch_add(1, std::memory_order_relaxed);
    return chain < num_chains() ? chain : kNothing;
  }

  // Returns the first unit of the chain that would be followed next, unless all of it is gone.
  int peek() const {
    const int chain = next_.load(std::memory_order_relaxed);
    if (chain >= num_chains()) return kNothing;
    const Left left = look(chain);
    return left.first < left.end ? left.first : kNothing;
  }

  // Returns a chain's next unit; for the thread that follows it.
  int take_first(int chain) {
    return take(chain, [](Left& left) { return left.first++; });
  }

  // Returns the last unit of the chain of which most is left.
  int take_last() {
    for (;;) {
      int longest = kNothing, most = 0;
      for (int chain = 0; chain < num_chains(); ++chain) {
        const Left left = look(chain);
        if (left.end - left.first > most) {
          most = left.end - left.first;
          longest = chain;
        }
      }
      if (longest == kNothing) return kNothing;
      const int unit = take(longest, [](Left& left) { return --left.end; });
      if (unit != kNothing) return unit;
    }
  }

 private:
  struct Left {
    int32_t first, end;
  };

  static uint64_t pack(int32_t first, int32_t end) {
    return uint64_t(uint32_t(first)) << 32 | uint32_t(end);
  }
  static Left unpack(uint64_t both) { return {int32_t(both >> 32), int32_t(both)}; }

  int num_chains() const { return int(left_.size()); }
  Left look(int chain) const { return unpack(left_[chain].load(std::memory_order_relaxed)); }

  template <typename Take> int take(int chain, Take take) {
    uint64_t before = left_[chain].load(std::memory_order_relaxed);
    for (;;) {
      Left left = unpack(before);
      if (left.first >= left.end) return kNothing;
      const int unit = take(left);
      // Nothing but who computes what is told: results pass through a barrier.
      if (left_[chain].compare_exchange_weak(before, pack(left.first, left.end),
                                             std::memory_order_relaxed)) {
        return unit;
      }
    }
  }

  std::vector<std::atomic<uint64_t>> left_;
  std::atomic<int> next_{0};
};

}  // namespace prefold
