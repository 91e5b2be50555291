// What a kernel does with one segment: rows, keys and where they are. Part of the kernel,
// compiled once for each instruction set.
#pragma once

#include "tiles.inl"

namespace PREFOLD_ISA {

struct Span {
  int first, end;
};

// Rows of [rows, rows + num_rows) that belong to a segment's members.
static Span rows_of(const Row* rows, int num_rows, const Segment& segment) {
  Span span{0, num_rows};
  while (span.first < span.end && rows[span.first].member < segment.first_member) {
    ++span.first;
  }
  while (span.end > span.first && rows[span.end - 1].member >= segment.end_member) {
    --span.end;
  }
  return span;
}

// Keys of a partition that a row sees, counted from the partition's first.
PREFOLD_INLINE Span seen_by(const Row& row, int64_t partition, int64_t window) {
  const int64_t start = partition * kPartition;
  int64_t low = window == 0 ? 0 : row.position + 1 - window - start;
  int64_t high = row.position + 1 - start;
  low = low < 0 ? 0 : low > kPartition ? kPartition : low;
  high = high < 0 ? 0 : high > kPartition ? kPartition : high;
  return {int(low), int(high)};
}

// What a segment's products need to know.
struct Work {
  const Layer& layer;
  const Member& member;
  HeadRange heads;
  int64_t start;  // the partition's first position
  Span keys;      // counted from there
  Span rows;      // of each head
  int num_rows;   // of each head in scratch memory
};

// Into the second level of cache, where it waits without pushing out what is used now.
PREFOLD_INLINE void fetch(const float* from) { __builtin_prefetch(from, 0, 2); }

constexpr int kLine = 16;  // numbers of a line of the cache

}  // namespace PREFOLD_ISA
