// A row's scores over a partition, and what they weigh. Part of the kernel, compiled once for
// each instruction set.
#pragma once

#include "segment.inl"

namespace PREFOLD_ISA {

static_assert(kTile == kWide, "a tile is a wide vector");

// Keys of a partition: those that are looked at, a multiple of a tile, and those that are seen.
struct Seen {
  int first, end;
  Span own;
};

// Scores of the keys from `key` on, those outside [low, high) hidden.
PREFOLD_INLINE Floats hide(Floats scores, int key, int low, int high) {
  const Floats nothing = spread(-__builtin_inff());
  const Ints at = Ints{0, 1, 2, 3, 4, 5, 6, 7} + key;
  scores = at < low ? nothing : scores;
  return at >= high ? nothing : scores;
}

// Hides the scores of keys that are not seen; returns the highest one.
static float find_top(float* scores, const Seen& seen, float softcap) {
  if (softcap != 0.0f) {
    for (int key = seen.first; key < seen.end; key += kTile) {
      store(scores + key, multiply(tanh(load_wide(scores + key)), softcap));
    }
  }
  // Several, so that a comparison need not wait for the one before.
  constexpr int kTops = 4;
  Wide tops[kTops];
  for (Wide& each : tops) each = spread_wide(-__builtin_inff());
  const auto compare = [&](int key, Wide& top) {
    Wide tile = load_wide(scores + key);
    if (key < seen.own.first || key + kTile > seen.own.end) {
      tile = join(hide(low_of(tile), key, seen.own.first, seen.own.end),
                  hide(high_of(tile), key + kLanes, seen.own.first, seen.own.end));
      store(scores + key, tile);
    }
    top = larger(tile, top);
  };
  int next = seen.first;
  for (; next + kTops * kTile <= seen.end; next += kTops * kTile) {
#pragma GCC unroll 4
    for (int i = 0; i < kTops; ++i) compare(next + i * kTile, tops[i]);
  }
  for (; next < seen.end; next += kTile) compare(next, tops[0]);
  const Wide both = larger(larger(tops[0], tops[1]), larger(tops[2], tops[3]));
  return highest(larger(low_of(both), high_of(both)));
}

// Weights of a tile relative to the highest score; those of keys that are not seen are 0.
PREFOLD_INLINE Wide weights_of(const float* scores, float top) {
  return power_of_two(add(load_wide(scores), spread_wide(-top)));
}

PREFOLD_INLINE float sum(Wide totals) { return sum(low_of(totals) + high_of(totals)); }

}  // namespace PREFOLD_ISA
