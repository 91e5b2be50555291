// Register-blocked products of tiles: scores of query rows, and weighed sums of values.
// Part of the kernel, compiled once for each instruction set.
#pragma once

#include <utility>

#include "segment.inl"

namespace PREFOLD_ISA {

#if defined(PREFOLD_AVX512)
constexpr int kPanel = 12;   // query rows whose sums fit into registers
#else
constexpr int kPanel = 6;
#endif
constexpr int kStrip = kPartition / kTile;  // tiles weighed between two stores
constexpr int kCopiedStrip = 4;  // the same of tiles that are copied first
constexpr int kFewRows = 3;  // up to so many, memory is waited for more than arithmetic

// Columns whose sums are made at once.
template <int V, typename Own> struct Slice {
  using Vector = Own;
  static constexpr int count = V, width = V * lanes_of<Own>;
};

// Scores of R rows and 16 keys; fetches the tile at `ahead` meanwhile. Processors look a
// few hundred instructions ahead: the fewer each line takes, the more lines of memory
// are on their way. So the usual stride is known when this is compiled.
template <int R, bool kIsDense>
static void score_tile(const float* query, Tile keys, int64_t size, const float* ahead,
                       float* scores) {
  const int64_t stride = kIsDense ? kTile : keys.stride;
  Wide sums[R];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) sums[r] = Wide{};
#pragma GCC unroll 4
  for (int64_t d = 0; d < size; ++d) {
    fetch(ahead + d * stride);
    const Wide key = load_wide(keys.data + d * stride);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) sums[r] = multiply_add(query[r * kQueryStride + d], key, sums[r]);
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) store(scores + r * kScoreStride, sums[r]);
}

struct Two {
  const float *a, *b;
};

// Rows that score two tiles at once: few have too few sums of their own to fill the time that
// a multiplication takes, and with many registers more of them share what is loaded.
#if defined(PREFOLD_AVX512)
constexpr int kPairedRows = kPanel;
constexpr bool kAlwaysPairs = true;
#else
constexpr int kPairedRows = kFewRows;
constexpr bool kAlwaysPairs = false;
#endif

// Scores of R rows and two tiles.
template <int R>
static void score_two(const float* query, Two keys, int64_t size, Two ahead,
                      float* scores) {
  Wide sums[R][2];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = Wide{};
#pragma GCC unroll 2
  for (int64_t d = 0; d < size; ++d) {
    const int64_t at = d * kTile;
    fetch(ahead.a + at);
    fetch(ahead.b + at);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const float q = query[r * kQueryStride + d];
      sums[r][0] = multiply_add(q, load_wide(keys.a + at), sums[r][0]);
      sums[r][1] = multiply_add(q, load_wide(keys.b + at), sums[r][1]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    store(scores + r * kScoreStride, sums[r][0]);
    store(scores + r * kScoreStride + kTile, sums[r][1]);
  }
}

template <int R>
static void score(const float* query, Tile keys, int64_t size, const float* ahead,
                  float* scores) {
  if (keys.stride == kTile) {
    score_tile<R, true>(query, keys, size, ahead, scores);
  } else {
    score_tile<R, false>(query, keys, size, ahead, scores);
  }
}

// Adds the values of up to kStrip tiles, weighed, to V vectors of R rows' sums; fetches the
// tiles of `ahead` meanwhile. Inlined, its sums would not stay in registers.
template <int R, int V, typename Vector>
__attribute__((noinline)) static void weigh(const float* weights,
                                            const float* const* tiles,
                                            const float* const* ahead, int64_t column,
                                            int64_t stride, int64_t num_keys, float* sums,
                                            int64_t sums_stride) {
  constexpr int kOwn = lanes_of<Vector>;
  Vector acc[R][V];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      acc[r][v] = load_as<Vector>(sums + r * sums_stride + v * kOwn);
    }
  }
  for (int64_t first = 0; first < num_keys; first += kTile) {
    const float* row = *tiles++ + column;
    const float* next = *ahead++ + column;
    const int64_t count = num_keys - first < kTile ? num_keys - first : kTile;
    for (int64_t i = 0; i < count; ++i) {
      Vector values[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) values[v] = load_as<Vector>(row + v * kOwn);
#pragma GCC unroll 4
      for (int v = 0; v < V * kOwn; v += kLine) fetch(next + v);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const float weight = weights[r * kScoreStride + first + i];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) acc[r][v] = multiply_add(weight, values[v], acc[r][v]);
      }
      row += stride;
      next += stride;
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(sums + r * sums_stride + v * kOwn, acc[r][v]);
  }
}

// All value columns of R rows. Few rows wait for memory, and take slices so wide that whole
// lines are read in order.
template <int R>
static void weigh_columns(const float* weights, const float* const* tiles,
                          const float* const* ahead, int64_t stride, int num_keys,
                          float* sums, int64_t sums_stride, int size) {
  int64_t column = 0;
  const auto run = [&](auto slice) {
    using Slice = decltype(slice);
    for (; column + Slice::width <= size; column += Slice::width) {
      weigh<R, Slice::count, typename Slice::Vector>(weights, tiles, ahead, column, stride,
                                                     num_keys, sums + column, sums_stride);
    }
  };
#if defined(PREFOLD_AVX512)
  if constexpr (R <= kFewRows) run(Slice<4, Wide>{});
  run(Slice<2, Wide>{});
  run(Slice<1, Wide>{});
#else
  if constexpr (R <= kFewRows) {
    // Sums of one row fill the registers: the first one reads memory, the others what it
    // left in the cache.
    for (; column + 8 * kLanes <= size; column += 8 * kLanes) {
      for (int r = 0; r < R; ++r) {
        weigh<1, 8, Floats>(weights + r * kScoreStride, tiles, r == 0 ? ahead : tiles,
                            column, stride, num_keys, sums + r * sums_stride + column,
                            sums_stride);
      }
    }
    run(Slice<4, Floats>{});
  }
  run(Slice<2, Floats>{});
#endif
  run(Slice<1, Floats>{});
}

using ScoreRows = void (*)(const float*, Tile, int64_t, const float*, float*);
using WeighRows = void (*)(const float*, const float* const*, const float* const*, int64_t,
                           int, float*, int64_t, int);
using ScoreTwo = void (*)(const float*, Two, int64_t, Two, float*);
// For each number of rows.
template <typename Rows> struct RowProducts;
template <int... R> struct RowProducts<std::integer_sequence<int, R...>> {
  static constexpr ScoreRows score[] = {nullptr, PREFOLD_ISA::score<R + 1>...};
  static constexpr WeighRows weigh[] = {nullptr, weigh_columns<R + 1>...};
};
using OfRows = RowProducts<std::make_integer_sequence<int, kPanel>>;

template <typename Rows> struct Pairs;
template <int... R> struct Pairs<std::integer_sequence<int, R...>> {
  static constexpr ScoreTwo score[] = {nullptr, score_two<R + 1>...};
};
using OfPairs = Pairs<std::make_integer_sequence<int, kPairedRows>>;

}  // namespace PREFOLD_ISA
