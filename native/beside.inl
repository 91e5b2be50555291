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

// A step that is split pair by pair, while another one is brought into the first cache, and later
// ones into the second. Whatever is stored meanwhile, its places stay in registers.
template <int P> class Splitting {
 public:
  __attribute__((always_inline)) Splitting(const Columns& next, const Source& later,
                                           const SplitColumns& to)
      : upper_(next.from.upper),
        lower_(next.from.lower),
        stride_(next.from.stride),
        other_(next.from.other),
        near_upper_(later.upper),
        near_lower_(later.lower),
        near_stride_(later.stride),
        near_other_(later.other),
        ahead_{next.ahead.of[0], next.ahead.of[1], next.ahead.of[2], next.ahead.of[3]},
        to_{to.one.first, to.one.others, to.other.first, to.other.others} {}

  template <int... kPair>
  __attribute__((always_inline)) void do_pairs(int first, std::integer_sequence<int, kPair...>) {
    (do_pair(first + kPair), ...);
  }

 private:
  __attribute__((always_inline)) void do_pair(int pair) {
    for (int i = 2 * P * pair; i < 2 * P * (pair + 1); ++i) {
      fetch(ahead_[i % kWays] + i / kWays * kLine);
    }
    fetch_near(near_upper_);
    fetch_near(near_lower_);
    split(0, 0, pair);
    if constexpr (P > 1) split(other_, 2, pair);
    upper_ += stride_;
    lower_ += stride_;
    near_upper_ += near_stride_;
    near_lower_ += near_stride_;
  }

  __attribute__((always_inline)) void fetch_near(const float* row) const {
    __builtin_prefetch(row, 0, 3);
    if constexpr (P > 1) __builtin_prefetch(row + near_other_, 0, 3);
  }

  __attribute__((always_inline)) void split(int64_t other, int tile, int pair) const {
    const Split<uint16_t> to{to_[tile], to_[tile + 1]};
    store_pairs<kPieces>(load_wide(upper_ + other), load_wide(lower_ + other),
                         [&](int i) { return to.piece(i) + pair * kDepth; });
  }

  const float *upper_, *lower_;
  const int64_t stride_, other_;
  const float *near_upper_, *near_lower_;
  const int64_t near_stride_, near_other_;
  const float* const ahead_[kWays];
  uint16_t* const to_[4];
};

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
    const float* own = scores + from * kScoreStride;
    const float* part = parts + from * stride;
    float* total = totals + from * kTile;
    uint16_t* pieces = weights + from * kDepth;
    const int64_t next_part = stride;
    for (int left = to - from; left > 0; --left) {
      const float top = *part;
      const Wide one = weights_of(own, top), other = weights_of(own + kTile, top);
      store(total, add(add(load_wide(total), one), other));
      store_row_pairs<kWeightPiece>(one, other, pieces);
      own += kScoreStride;
      part += next_part;
      total += kTile;
      pieces += kDepth;
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
  Splitting<P> splitting(next, later.from, to);
  add_all<R, P, kRowPiece>(
      rows, columns, [&](auto go) __attribute__((always_inline)) {
        constexpr int kGo = decltype(go)::value;
        constexpr int kFirst = kPairs * kGo / kGoes, kEnd = kPairs * (kGo + 1) / kGoes;
        splitting.do_pairs(kFirst, std::make_integer_sequence<int, kEnd - kFirst>{});
        beside.template do_some<kGo>();
      });
}

template <int R, int P, int64_t kRowPiece>
__attribute__((noinline)) static void add_only(TiledRows rows, const SplitColumns& columns) {
  add_all<R, P, kRowPiece>(rows, columns, [](auto) {});
}

}  // namespace PREFOLD_ISA
