// Register-blocked products of tiles: scores of query rows, and weighed sums of values.
// Part of the kernel, compiled once for each instruction set.
#pragma once

#include "tiles.inl"

namespace PREFOLD_ISA {

constexpr int kPanel = 6;    // query rows whose sums fit into registers, two vectors each
constexpr int kStrip = 4;    // tiles whose values are weighed between two stores
constexpr int kFewRows = 3;  // up to so many, memory is waited for more than arithmetic

template <int N> struct Count {
  static constexpr int value = N;
};

// Into the second level of cache, where it waits without pushing out what is used now.
PREFOLD_INLINE void fetch(const float* from) { __builtin_prefetch(from, 0, 2); }

// Scores of R rows and 16 keys; fetches the tile at `ahead` meanwhile. Processors look a
// few hundred instructions ahead: the fewer each line takes, the more lines of memory
// are on their way. So the usual stride is known when this is compiled.
template <int R, bool kIsDense>
static void score_tile(const float* query, Tile keys, int64_t size, const float* ahead,
                       float* scores) {
  const int64_t stride = kIsDense ? kTile : keys.stride;
  Floats sums[R][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = spread(0.0f);
#pragma GCC unroll 4
  for (int64_t d = 0; d < size; ++d) {
    fetch(ahead + d * stride);
    const Floats low = load(keys.data + d * stride);
    const Floats high = load(keys.data + d * stride + kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Floats q = spread(query[r * size + d]);
      sums[r][0] = multiply_add(q, low, sums[r][0]);
      sums[r][1] = multiply_add(q, high, sums[r][1]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    store(scores + r * kScoreStride, sums[r][0]);
    store(scores + r * kScoreStride + kLanes, sums[r][1]);
  }
}

struct Two {
  const float *a, *b;
};

// Scores of R rows and two tiles: few rows have too few sums of their own to fill the time
// that a multiplication takes.
template <int R>
static void score_two(const float* query, Two keys, int64_t size, Two ahead,
                      float* scores) {
  Floats sums[R][4];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sums[r][i] = spread(0.0f);
  }
#pragma GCC unroll 2
  for (int64_t d = 0; d < size; ++d) {
    const int64_t at = d * kTile;
    fetch(ahead.a + at);
    fetch(ahead.b + at);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Floats q = spread(query[r * size + d]);
      sums[r][0] = multiply_add(q, load(keys.a + at), sums[r][0]);
      sums[r][1] = multiply_add(q, load(keys.a + at + kLanes), sums[r][1]);
      sums[r][2] = multiply_add(q, load(keys.b + at), sums[r][2]);
      sums[r][3] = multiply_add(q, load(keys.b + at + kLanes), sums[r][3]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) store(scores + r * kScoreStride + i * kLanes, sums[r][i]);
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
template <int R, int V>
__attribute__((noinline)) static void weigh(const float* weights,
                                            const float* const* tiles,
                                            const float* const* ahead, int64_t column,
                                            int64_t stride, int64_t num_keys, float* sums,
                                            int64_t sums_stride) {
  Floats acc[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[r][v] = load(sums + r * sums_stride + v * kLanes);
  }
  for (int64_t first = 0; first < num_keys; first += kTile) {
    const float* row = *tiles++ + column;
    const float* next = *ahead++ + column;
    const int64_t count = num_keys - first < kTile ? num_keys - first : kTile;
    for (int64_t i = 0; i < count; ++i) {
      Floats values[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) values[v] = load(row + v * kLanes);
#pragma GCC unroll 4
      for (int v = 0; v < V; v += 2) fetch(next + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Floats weight = spread(weights[r * kScoreStride + first + i]);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) acc[r][v] = multiply_add(weight, values[v], acc[r][v]);
      }
      row += stride;
      next += stride;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(sums + r * sums_stride + v * kLanes, acc[r][v]);
  }
}

// All value columns of R rows. Few rows wait for memory: one after another takes slices so
// wide that the first one reads whole lines in order, the others what it left in the cache.
template <int R>
static void weigh_columns(const float* weights, const float* const* tiles,
                          const float* const* ahead, int64_t stride, int num_keys,
                          float* sums, int64_t sums_stride, int size) {
  int64_t column = 0;
  const auto run = [&](auto vectors) {
    constexpr int V = decltype(vectors)::value;
    for (; column + V * kLanes <= size; column += V * kLanes) {
      weigh<R, V>(weights, tiles, ahead, column, stride, num_keys, sums + column,
                  sums_stride);
    }
  };
  if constexpr (R <= kFewRows) {
    for (; column + 8 * kLanes <= size; column += 8 * kLanes) {
      for (int r = 0; r < R; ++r) {
        weigh<1, 8>(weights + r * kScoreStride, tiles, r == 0 ? ahead : tiles, column,
                    stride, num_keys, sums + r * sums_stride + column, sums_stride);
      }
    }
    run(Count<4>{});
  }
  run(Count<2>{});
  run(Count<1>{});
}

using ScoreRows = void (*)(const float*, Tile, int64_t, const float*, float*);
using WeighRows = void (*)(const float*, const float* const*, const float* const*, int64_t,
                           int, float*, int64_t, int);
using ScoreTwo = void (*)(const float*, Two, int64_t, Two, float*);
static const ScoreTwo kScoreTwo[] = {nullptr, score_two<1>, score_two<2>, score_two<3>};
static const ScoreRows kScore[] = {nullptr,  score<1>, score<2>, score<3>,
                                   score<4>, score<5>, score<6>};
static const WeighRows kWeigh[] = {nullptr,          weigh_columns<1>, weigh_columns<2>,
                                   weigh_columns<3>, weigh_columns<4>, weigh_columns<5>,
                                   weigh_columns<6>};

}  // namespace PREFOLD_ISA
