// What is done beside the products of a step on a matrix unit: the next step's numbers are split,
// later ones fetched, and scores turn into weights. Part of the kernel.
#pragma once

#include <utility>

#include "pieces.inl"
#include "softmax.inl"

namespace PREFOLD_ISA {

// Pieces of rows lie as [steps][pieces][rows][kDepth]; what stands behind the last row of a
// tile may be any numbers. Queries are those of all heads, weights those of one.
constexpr int kHeadRows = 3 * kTileRows, kRowsBehind = 2;
constexpr int64_t kQueryPiece = int64_t(kMaxRows + kRowsBehind) * kDepth;
constexpr int64_t kWeightPiece = int64_t(kHeadRows + kRowsBehind) * kDepth;

// Numbers of one step: kDepth rows of one or two tiles of columns, `other` numbers apart.
struct Source {
  const float *upper, *lower;  // halves of the rows
  int64_t stride, other;

  void set(const float* one, const float* two, int64_t row, int64_t tile) {
    upper = one;
    lower = two;
    stride = row;
    other = tile;
  }
};

// Runs of memory that are fetched side by side: processors go on to read what follows each.
constexpr int kWays = 4;

struct Runs {
  const float* of[kWays];
};

struct Columns {
  Source from;
  Runs ahead;  // what is fetched meanwhile, as much as is split
  bool is_whole;  // or has been copied, to be split at once
};

template <int P, int kPair>
PREFOLD_INLINE void split_rows(const Source& from, const SplitColumns& to) {
  const float *upper = from.upper + kPair * from.stride,
              *lower = from.lower + kPair * from.stride;
  store_pairs<kPieces>(load_wide(upper), load_wide(lower),
                       [&](int i) { return to.one.piece(i) + kPair * kDepth; });
  if constexpr (P > 1) {
    store_pairs<kPieces>(load_wide(upper + from.other), load_wide(lower + from.other),
                         [&](int i) { return to.other.piece(i) + kPair * kDepth; });
  }
}

template <int P, int... kPair>
PREFOLD_INLINE void split_all(const Source& from, const SplitColumns& to,
                              std::integer_sequence<int, kPair...>) {
  (split_rows<P, kPair>(from, to), ...);
}

template <int P>
__attribute__((noinline)) static void split_step(const Source& from, const SplitColumns& to) {
  split_all<P>(from, to, std::make_integer_sequence<int, kDepth / 2>{});
}

template <int P, int kFirst, int... kPair>
PREFOLD_INLINE void fetch_and_split(const Columns& next, const Source& later,
                                    const SplitColumns& to,
                                    std::integer_sequence<int, kPair...>) {
  const auto fetch_part = [&](int part) __attribute__((always_inline)) {
    for (int i = 2 * P * part; i < 2 * P * (part + 1); ++i) {
      fetch(next.ahead.of[i % kWays] + i / kWays * kLine);
    }
  };
  const auto fetch_near = [&](const float* row) __attribute__((always_inline)) {
    __builtin_prefetch(row, 0, 3);
    if constexpr (P > 1) __builtin_prefetch(row + later.other, 0, 3);
  };
  ((fetch_part(kFirst + kPair), fetch_near(later.upper + (kFirst + kPair) * later.stride),
    fetch_near(later.lower + (kFirst + kPair) * later.stride),
    split_rows<P, kFirst + kPair>(next.from, to)),
   ...);
}

// In as many goes as there are multiplications that it can be done before.
constexpr int kGoes = times_of(kPieces);

struct Nothing {
  template <int kGo> void do_some() const {}
  void do_all() const {}
};

// Rows whose scores turn into the weights of a step; counted from a segment's first row.
struct Softening {
  const float* scores;  // of the step's first key
  const float* parts;   // which begin with a row's highest score
  int64_t stride;       // of parts
  float* totals;        // [rows][kTile]
  uint16_t* weights;
  int first, end;

  template <int kGo> __attribute__((always_inline)) void do_some() const {
    const int count = end - first;
    do_rows(first + count * kGo / kGoes, first + count * (kGo + 1) / kGoes);
  }
  void do_all() const { do_rows(first, end); }

 private:
  __attribute__((always_inline)) void do_rows(int from, int to) const {
    for (int row = from; row < to; ++row) {
      const float* own = scores + row * kScoreStride;
      const float top = parts[row * stride];
      const Wide one = weights_of(own, top), other = weights_of(own + kTile, top);
      float* const total = totals + row * kTile;
      store(total, add(add(load_wide(total), one), other));
      store_row_pairs<kWeightPiece>(one, other, weights + row * kDepth);
    }
  }
};

// Adds a step's products, and splits the next one between them; the one after that is brought
// into the first cache.
template <int R, int P, int64_t kRowPiece, typename Beside>
__attribute__((noinline)) static void add_and_split(TiledRows rows, const SplitColumns& columns,
                                                    const Columns& next,
                                                    const Columns& later,
                                                    const SplitColumns& to,
                                                    const Beside& beside) {
  constexpr int kPairs = kDepth / 2;
  add_all<R, P, kRowPiece>(
      rows, columns, [&](auto go) __attribute__((always_inline)) {
        constexpr int kGo = decltype(go)::value;
        constexpr int kFirst = kPairs * kGo / kGoes, kEnd = kPairs * (kGo + 1) / kGoes;
        fetch_and_split<P, kFirst>(next, later.from, to,
                                   std::make_integer_sequence<int, kEnd - kFirst>{});
        beside.template do_some<kGo>();
      });
}

template <int R, int P, int64_t kRowPiece>
__attribute__((noinline)) static void add_only(TiledRows rows, const SplitColumns& columns) {
  add_all<R, P, kRowPiece>(rows, columns, [](auto) {});
}

}  // namespace PREFOLD_ISA
