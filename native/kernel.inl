// The attention kernel, compiled once for each instruction set.
//
// Equal bits for a row, whatever is computed with it: a score adds its products along the
// head's axis in order, in a lane of its own; a weighted sum adds its values along the
// keys in order, in a lane of its own; sums of weights depend on key positions alone.
// Blocking, sharing and masks only choose what is computed when. Online softmax over
// parts: Milakov & Gimelshein 2018; rows that share keys: Juravsky et al. 2024.

#include "kernel.h"
#include "simd.h"

namespace PREFOLD_ISA {

using namespace prefold;

constexpr int kPanel = 6;  // query rows whose sums fit into registers, two vectors each
constexpr int kStrip = 4;  // tiles whose values are weighed between two stores
constexpr int kLead = 4;   // tiles that are fetched ahead of the one that is used

template <int N> struct Count {
  static constexpr int value = N;
};

template <typename Stored> PREFOLD_INLINE float widen(Stored stored, Number number) {
  if constexpr (sizeof(Stored) == 4) return stored;
  if (number == Number::float16) return half_to_float(stored);
  const uint32_t bits = uint32_t(stored) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

PREFOLD_INLINE Floats load_wide(const uint16_t* from, Number number) {
  return number == Number::float16 ? load_halves(from) : load_bfloats(from);
}

PREFOLD_INLINE uint16_t narrow(float value, Number number) {
  return number == Number::float16 ? float_to_half(value) : float_to_bfloat(value);
}

// ---- where keys and values are -----------------------------------------------------

struct Place {
  int64_t key, value;  // numbers from the pool's first
  int32_t room;        // positions from here to the block's end
};

PREFOLD_INLINE Place find(const Layer& layer, const Member& member, int kv_head,
                          int64_t position) {
  const int64_t block = member.blocks[position / layer.block_size];
  const int32_t inner = int32_t(position % layer.block_size);
  const int64_t base = block * layer.block_numbers;
  const int64_t area = int64_t(kv_head) * layer.block_size;
  return {base + layer.key_offset + area * layer.key_size + inner,
          base + layer.value_offset + (area + inner) * layer.value_size,
          layer.block_size - inner};
}

template <typename Stored>
static void write_rows(const Layer& layer, const Member& member, int64_t first,
                       int64_t end, const Heads& keys, const Heads& values) {
  Stored* pool = static_cast<Stored*>(layer.pool);
  const auto put = [&](int64_t at, float value) {
    if constexpr (sizeof(Stored) == 4) pool[at] = value;
    else pool[at] = narrow(value, layer.number);
  };
  for (int head = 0; head < layer.kv_heads; ++head) {
    for (int64_t position = first; position < end; ++position) {
      const Place place = find(layer, member, head, position);
      const int64_t row = member.first_row + position - member.start;
      const float* key = keys.data + head * keys.head_stride + row * keys.row_stride;
      const float* value =
          values.data + head * values.head_stride + row * values.row_stride;
      for (int d = 0; d < layer.key_size; ++d) {
        put(place.key + int64_t(d) * layer.block_size, key[d]);
      }
      for (int d = 0; d < layer.value_size; ++d) put(place.value + d, value[d]);
    }
  }
}

static void write(const Layer& layer, const Member& member, int64_t first, int64_t end,
                  const Heads& keys, const Heads& values) {
  if (layer.number == Number::float32) {
    write_rows<float>(layer, member, first, end, keys, values);
  } else {
    write_rows<uint16_t>(layer, member, first, end, keys, values);
  }
}

// ---- tiles: 16 keys, or the values of 16 keys, as float32 ---------------------------

// Whether tiles can be used where they are.
static bool has_plain_keys(const Layer& layer) {
  return layer.number == Number::float32 && layer.block_size % kTile == 0;
}

static bool has_plain_values(const Layer& layer) {
  return has_plain_keys(layer) && layer.value_size % kLanes == 0;
}

struct Tile {
  const float* data;
  int64_t stride;  // from one row to the next
};

template <typename Stored>
static void copy_keys(const Layer& layer, const Member& member, int kv_head,
                      int64_t position, int num_keys, float* to) {
  const Stored* pool = static_cast<const Stored*>(layer.pool);
  for (int done = 0; done < num_keys;) {
    const Place place = find(layer, member, kv_head, position + done);
    const int run = place.room < num_keys - done ? place.room : num_keys - done;
    for (int d = 0; d < layer.key_size; ++d) {
      const Stored* from = pool + place.key + int64_t(d) * layer.block_size;
      float* row = to + d * kTile + done;
      int i = 0;
      if constexpr (sizeof(Stored) == 2) {
        for (; i + kLanes <= run; i += kLanes) {
          store(row + i, load_wide(from + i, layer.number));
        }
      }
      for (; i < run; ++i) row[i] = widen(from[i], layer.number);
    }
    done += run;
  }
}

template <typename Stored>
static void copy_values(const Layer& layer, const Member& member, int kv_head,
                        int64_t position, int num_keys, float* to) {
  const Stored* pool = static_cast<const Stored*>(layer.pool);
  const int stride = padded_size(layer.value_size);
  for (int i = 0; i < num_keys; ++i) {
    const Stored* from = pool + find(layer, member, kv_head, position + i).value;
    float* row = to + i * stride;
    int d = 0;
    if constexpr (sizeof(Stored) == 2) {
      for (; d + kLanes <= layer.value_size; d += kLanes) {
        store(row + d, load_wide(from + d, layer.number));
      }
    }
    for (; d < layer.value_size; ++d) row[d] = widen(from[d], layer.number);
    for (; d < stride; ++d) row[d] = 0.0f;
  }
}

// Keys behind `num_keys` are any numbers: their scores are hidden later.
static Tile key_tile(const Layer& layer, const Member& member, int kv_head,
                     int64_t position, int num_keys, float* scratch) {
  if (has_plain_keys(layer)) {
    const float* pool = static_cast<const float*>(layer.pool);
    return {pool + find(layer, member, kv_head, position).key, layer.block_size};
  }
  if (layer.number == Number::float32) {
    copy_keys<float>(layer, member, kv_head, position, num_keys, scratch);
  } else {
    copy_keys<uint16_t>(layer, member, kv_head, position, num_keys, scratch);
  }
  return {scratch, kTile};
}

static Tile value_tile(const Layer& layer, const Member& member, int kv_head,
                       int64_t position, int num_keys, float* scratch) {
  if (has_plain_values(layer)) {
    const float* pool = static_cast<const float*>(layer.pool);
    return {pool + find(layer, member, kv_head, position).value, layer.value_size};
  }
  if (layer.number == Number::float32) {
    copy_values<float>(layer, member, kv_head, position, num_keys, scratch);
  } else {
    copy_values<uint16_t>(layer, member, kv_head, position, num_keys, scratch);
  }
  return {scratch, padded_size(layer.value_size)};
}

// ---- register-blocked products ------------------------------------------------------

// Into the second level of cache, where it waits without pushing out what is used now.
PREFOLD_INLINE void fetch(const float* from) { __builtin_prefetch(from, 0, 2); }

// Scores of R rows and 16 keys; fetches the tile at `ahead` meanwhile. Processors look a few
// hundred instructions ahead: the fewer there are for each line of memory, the more lines
// are on their way, so the usual stride is known when this is compiled.
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

// All value columns of R rows. Few rows wait for memory: one after the other takes slices so
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
  if constexpr (R <= 3) {
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
static const ScoreRows kScore[] = {nullptr,  score<1>, score<2>, score<3>,
                                   score<4>, score<5>, score<6>};
static const WeighRows kWeigh[] = {nullptr,          weigh_columns<1>, weigh_columns<2>,
                                   weigh_columns<3>, weigh_columns<4>, weigh_columns<5>,
                                   weigh_columns<6>};

// ---- softmax ------------------------------------------------------------------------

// Scores of the keys from `key` on, those outside [low, high) hidden.
PREFOLD_INLINE Floats hide(Floats scores, int key, int low, int high) {
  const Floats nothing = spread(-__builtin_inff());
  const Ints at = Ints{0, 1, 2, 3, 4, 5, 6, 7} + key;
  scores = at < low ? nothing : scores;
  return at >= high ? nothing : scores;
}

// Turns scores of the keys [first, end), whole tiles, into weights relative to the highest
// one; those outside [low, high) get weight 0. Counted from the partition's first key.
static void soften(float* scores, int first, int end, int low, int high, float softcap,
                   float* part) {
  static_assert(kTile == 2 * kLanes, "a tile is two vectors");
  if (softcap != 0.0f) {
    for (int key = first; key < end; key += kLanes) {
      store(scores + key, tanh(load(scores + key)) * spread(softcap));
    }
  }
  Floats top_a = spread(-__builtin_inff()), top_b = top_a;
  for (int key = first; key < end; key += kTile) {
    Floats a = load(scores + key), b = load(scores + key + kLanes);
    if (key < low || key + kTile > high) {
      a = hide(a, key, low, high);
      b = hide(b, key + kLanes, low, high);
      store(scores + key, a);
      store(scores + key + kLanes, b);
    }
    top_a = larger(a, top_a);
    top_b = larger(b, top_b);
  }
  const float top = highest(larger(top_a, top_b));
  const Floats base = spread(top);
  Floats total_a = spread(0.0f), total_b = total_a;
  for (int key = first; key < end; key += kTile) {
    const Floats a = power_of_two(load(scores + key) - base);
    const Floats b = power_of_two(load(scores + key + kLanes) - base);
    store(scores + key, a);
    store(scores + key + kLanes, b);
    total_a += a;
    total_b += b;
  }
  part[0] = top;
  part[1] = sum(total_a + total_b);
}

// ---- one partition ------------------------------------------------------------------

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

// A tile of a segment: keys from `key` on, counted from the partition's first.
struct Spot {
  int head, key;
};

// The tile that is used kLead tiles later. Heads are the inner loop: a block's keys lie side
// by side, and long runs are read much faster than short ones.
PREFOLD_INLINE Spot later(const Work& work, Spot spot) {
  for (int i = 0; i < kLead; ++i) {
    if (++spot.head < work.heads.end) continue;
    spot.head = work.heads.first;
    spot.key += kTile;
  }
  return spot;
}

// What to fetch while a tile of keys is used: later keys, or the first values behind them.
static const float* ahead_of_keys(const Work& work, Spot spot, const float* otherwise) {
  const Layer& layer = work.layer;
  if (!has_plain_values(layer)) return otherwise;
  const float* pool = static_cast<const float*>(layer.pool);
  const Spot next = later(work, spot);
  if (next.key < work.keys.end) {
    return pool + find(layer, work.member, next.head, work.start + next.key).key;
  }
  const int key = work.keys.first + (next.key - work.keys.end) / kTile * kTile;
  if (key >= work.keys.end) return otherwise;
  return pool + find(layer, work.member, next.head, work.start + key).value;
}

// While a tile of values is used: later values, or the first keys of what comes next.
static const float* ahead_of_values(const Work& work, Spot spot, const Ahead& ahead,
                                    const float* otherwise) {
  const Layer& layer = work.layer;
  if (!has_plain_values(layer)) return otherwise;
  const float* pool = static_cast<const float*>(layer.pool);
  const Spot next = later(work, spot);
  if (next.key < work.keys.end) {
    return pool + find(layer, work.member, next.head, work.start + next.key).value;
  }
  const int key = (next.key - work.keys.end) / kTile * kTile;
  if (key >= ahead.end_key || next.head >= ahead.heads.end) return otherwise;
  return pool + find(layer, *ahead.member, next.head, ahead.start + key).key;
}

static void score_segment(const Work& work, Scratch& scratch) {
  const Layer& layer = work.layer;
  for (int key = work.keys.first; key < work.keys.end; key += kTile) {
    const int left = work.keys.end - key;
    for (int head = work.heads.first; head < work.heads.end; ++head) {
      const Tile tile = key_tile(layer, work.member, head, work.start + key,
                                 left < kTile ? left : kTile, scratch.tiles);
      const float* ahead = ahead_of_keys(work, {head, key}, tile.data);
      const int base = (head - work.heads.first) * work.num_rows;
      for (int r = work.rows.first; r < work.rows.end; r += kPanel) {
        const int count = work.rows.end - r < kPanel ? work.rows.end - r : kPanel;
        kScore[count](scratch.queries + (base + r) * layer.key_size, tile, layer.key_size,
                      ahead, scratch.scores + (base + r) * kScoreStride + key);
        ahead = tile.data;
      }
    }
  }
}

static void weigh_strip(const Work& work, int head, int key, int num_keys,
                        Scratch& scratch) {
  const Layer& layer = work.layer;
  const int size = padded_size(layer.value_size);
  const int stride = part_numbers(layer.value_size);
  const float* tiles[kStrip];
  const float* next[kStrip];
  int64_t row_stride = 0;
  for (int t = 0; t * kTile < num_keys; ++t) {
    const int at = key + t * kTile;
    const int left = key + num_keys - at;
    const Tile tile = value_tile(layer, work.member, head, work.start + at,
                                 left < kTile ? left : kTile,
                                 scratch.tiles + t * kTile * size);
    row_stride = tile.stride;
    tiles[t] = tile.data;
    next[t] = ahead_of_values(work, {head, at}, scratch.ahead, tile.data);
  }
  const int base = (head - work.heads.first) * work.num_rows;
  const float* const* fetched = next;
  for (int r = work.rows.first; r < work.rows.end; r += kPanel) {
    const int count = work.rows.end - r < kPanel ? work.rows.end - r : kPanel;
    kWeigh[count](scratch.scores + (base + r) * kScoreStride + key, tiles, fetched,
                  row_stride, num_keys,
                  scratch.parts + int64_t(base + r) * stride + kPartHead, stride, size);
    fetched = tiles;
  }
}

static void weigh_segment(const Work& work, Scratch& scratch) {
  const bool is_single = work.heads.end - work.heads.first == 1;
  const int strip = is_single ? kStrip * kTile : kTile;
  for (int key = work.keys.first; key < work.keys.end; key += strip) {
    const int left = work.keys.end - key;
    for (int head = work.heads.first; head < work.heads.end; ++head) {
      weigh_strip(work, head, key, left < strip ? left : strip, scratch);
    }
  }
}

// Fetches a tile of values by its number, for the time in which nothing else is read.
static void fetch_values(const Work& work, int number) {
  const Layer& layer = work.layer;
  const int num_heads = work.heads.end - work.heads.first;
  const int key = work.keys.first + number / num_heads * kTile;
  if (!has_plain_values(layer) || key >= work.keys.end) return;
  const int head = work.heads.first + number % num_heads;
  const float* from = static_cast<const float*>(layer.pool) +
                      find(layer, work.member, head, work.start + key).value;
  for (int i = 0; i < kTile * layer.value_size; i += 2 * kLanes) fetch(from + i);
}

static void copy_query(const Layer& layer, const Heads& query, float scale, const Row& row,
                       int head, float* to) {
  const int64_t query_head = int64_t(head) * (layer.heads / layer.kv_heads) + row.head;
  const float* from =
      query.data + query_head * query.head_stride + row.packed * query.row_stride;
  for (int d = 0; d < layer.key_size; ++d) to[d] = from[d] * scale;
}

static void attend(const Layer& layer, const Member* members, const Heads& query,
                   const Options& options, const Row* rows, int num_rows, HeadRange heads,
                   const Segment* segments, int num_segments, int64_t partition,
                   Scratch& scratch) {
  const int stride = part_numbers(layer.value_size);
  const int num_heads = heads.end - heads.first;
  Span seen{kPartition, 0};  // by any row
  for (int r = 0; r < num_rows; ++r) {
    const Span own = seen_by(rows[r], partition, options.window);
    seen.first = own.first < seen.first ? own.first : seen.first;
    seen.end = own.end > seen.end ? own.end : seen.end;
    for (int head = 0; head < num_heads; ++head) {
      copy_query(layer, query, options.scale, rows[r], heads.first + head,
                 scratch.queries + (head * num_rows + r) * layer.key_size);
    }
  }
  seen.first -= seen.first % kTile;
  std::memset(scratch.parts, 0, sizeof(float) * stride * num_heads * num_rows);
  const auto work_of = [&](const Segment& segment) {
    const Span keys{seen.first > segment.first_key ? seen.first : segment.first_key,
                    seen.end < segment.end_key ? seen.end : segment.end_key};
    return Work{layer, members[segment.first_member], heads, partition * kPartition,
                keys,  rows_of(rows, num_rows, segment), num_rows};
  };
  const auto each_segment = [&](auto run) {
    for (int s = 0; s < num_segments; ++s) {
      const Work work = work_of(segments[s]);
      if (work.rows.first < work.rows.end && work.keys.first < work.keys.end) {
        run(work, scratch);
      }
    }
  };
  each_segment(score_segment);
  const int end = (seen.end + kTile - 1) / kTile * kTile;
  const Work first = work_of(segments[0]);
  int fetched = kLead;
  for (int r = 0; r < num_rows; ++r) {
    const Span own = seen_by(rows[r], partition, options.window);
    for (int head = 0; head < num_heads; ++head) {
      const int64_t at = head * num_rows + r;
      fetch_values(first, fetched++);
      soften(scratch.scores + at * kScoreStride, seen.first, end, own.first, own.end,
             options.softcap, scratch.parts + at * stride);
    }
  }
  each_segment(weigh_segment);
}

// ---- sums of parts ------------------------------------------------------------------

PREFOLD_INLINE void scale_and_add(float* sum, float before, const float* part, float now,
                                  int size) {
  const Floats a = spread(before), b = spread(now);
  for (int d = 0; d < size; d += kLanes) {
    store(sum + d, multiply_add(load(sum + d), a, load(part + d) * b));
  }
}

static void merge(float* sum, const float* part, int value_size) {
  const float top = sum[0] > part[0] ? sum[0] : part[0];
  const Floats shift = {sum[0] - top, part[0] - top, 0, 0, 0, 0, 0, 0};
  const Floats factors = power_of_two(shift);
  sum[1] = sum[1] * factors[0] + part[1] * factors[1];
  scale_and_add(sum + kPartHead, factors[0], part + kPartHead, factors[1],
                padded_size(value_size));
  sum[0] = top;
}

static void finish(const float* sum, const float* sink, int value_size, float* out) {
  float total = sum[1], factor = 1.0f;
  if (sink != nullptr) {
    const float base_2 = *sink * 1.4426950408889634f;
    const float top = sum[0] > base_2 ? sum[0] : base_2;
    const Floats shift = {sum[0] - top, base_2 - top, 0, 0, 0, 0, 0, 0};
    const Floats factors = power_of_two(shift);
    factor = factors[0];
    total = total * factor + factors[1];
  }
  const float* values = sum + kPartHead;
  for (int d = 0; d < value_size; ++d) {
    // Whether hidden keys were computed, with weight 0, may show in the sign of a zero.
    out[d] = values[d] * factor / total + 0.0f;
  }
}

}  // namespace PREFOLD_ISA
