// The attention kernel, compiled once for each instruction set.
//
// Equal bits for a row, whatever is computed with it: a score adds its products along the
// head's axis in order, in a lane of its own; a weighted sum adds its values along the
// keys in order, in a lane of its own; sums of weights depend on key positions alone.
// Blocking, sharing and masks only choose what is computed when. Online softmax over
// parts: Milakov & Gimelshein 2018; rows that share keys: Juravsky et al. 2024.

#include "products.inl"

namespace PREFOLD_ISA {

constexpr int kLead = 4;  // tiles that are fetched ahead of the one that is used

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
  static_assert(kTile == kWide, "a tile is a wide vector");
  if (softcap != 0.0f) {
    for (int key = first; key < end; key += kTile) {
      store(scores + key, multiply(tanh(load_wide(scores + key)), softcap));
    }
  }
  // Several, so that a comparison need not wait for the one before.
  constexpr int kTops = 4;
  Wide tops[kTops];
  for (Wide& each : tops) each = spread_wide(-__builtin_inff());
  const auto compare = [&](int key, Wide& top) {
    Wide tile = load_wide(scores + key);
    if (key < low || key + kTile > high) {
      tile = join(hide(low_of(tile), key, low, high),
                  hide(high_of(tile), key + kLanes, low, high));
      store(scores + key, tile);
    }
    top = larger(tile, top);
  };
  int next = first;
  for (; next + kTops * kTile <= end; next += kTops * kTile) {
#pragma GCC unroll 4
    for (int i = 0; i < kTops; ++i) compare(next + i * kTile, tops[i]);
  }
  for (; next < end; next += kTile) compare(next, tops[0]);
  const Wide both = larger(larger(tops[0], tops[1]), larger(tops[2], tops[3]));
  const float top = highest(larger(low_of(both), high_of(both)));
  Wide totals = spread_wide(0.0f);
  for (int key = first; key < end; key += kTile) {
    const Wide weights = power_of_two(add(load_wide(scores + key), spread_wide(-top)));
    store(scores + key, weights);
    totals = add(totals, weights);
  }
  part[0] = top;
  part[1] = sum(low_of(totals) + high_of(totals));
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

// The tile used kLead tiles later. Heads are the inner loop: keys of a block lie side
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

// Where a tile of values is, by its number in reading order; null behind the last one.
static const float* values_at(const Work& work, int number) {
  const int num_heads = work.heads.end - work.heads.first;
  const int key = work.keys.first + number / num_heads * kTile;
  if (key >= work.keys.end) return nullptr;
  return static_cast<const float*>(work.layer.pool) +
         find(work.layer, work.member, work.heads.first + number % num_heads,
              work.start + key).value;
}

static Two keys_at(const Work& work, int number) {
  const int num_heads = work.heads.end - work.heads.first;
  const int head = work.heads.first + number % num_heads;
  const int64_t position =
      work.start + work.keys.first + number / num_heads * (2 * kTile);
  const float* pool = static_cast<const float*>(work.layer.pool);
  return {pool + find(work.layer, work.member, head, position).key,
          pool + find(work.layer, work.member, head, position + kTile).key};
}

// Scores two tiles at a time where that is faster; returns the first key that is left.
static int score_twos(const Work& work, Scratch& scratch) {
  const Layer& layer = work.layer;
  const int num_rows = work.rows.end - work.rows.first;
  const int num_heads = work.heads.end - work.heads.first;
  const bool has_pairs = kAlwaysPairs || num_rows <= kPairedRows;
  if (!has_pairs || layer.block_size != kTile || !has_plain_values(layer)) {
    return work.keys.first;
  }
  const int per_head = (work.keys.end - work.keys.first) / (2 * kTile);
  const int count = per_head * num_heads;
  for (int i = 0; i < count; ++i) {
    const Two keys = keys_at(work, i);
    Two ahead = keys;
    const int later = i + kLead / 2;
    if (later < count) {
      ahead = keys_at(work, later);
    } else if (const float* last = values_at(work, 2 * (later - count) + 1)) {
      ahead = {values_at(work, 2 * (later - count)), last};
    }
    const int base = i % num_heads * work.num_rows;
    const int key = work.keys.first + i / num_heads * (2 * kTile);
    for (int r = work.rows.first; r < work.rows.end; r += kPairedRows) {
      const int count = work.rows.end - r < kPairedRows ? work.rows.end - r : kPairedRows;
      OfPairs::score[count](scratch.queries + (base + r) * kQueryStride, keys,
                            layer.key_size, ahead,
                            scratch.scores + (base + r) * kScoreStride + key);
      ahead = keys;
    }
  }
  return work.keys.first + per_head * 2 * kTile;
}

static void score_segment(const Work& work, Scratch& scratch) {
  const Layer& layer = work.layer;
  for (int key = score_twos(work, scratch); key < work.keys.end; key += kTile) {
    const int left = work.keys.end - key;
    for (int head = work.heads.first; head < work.heads.end; ++head) {
      const Tile tile = key_tile(layer, work.member, head, work.start + key,
                                 left < kTile ? left : kTile, scratch.tiles);
      const float* ahead = ahead_of_keys(work, {head, key}, tile.data);
      const int base = (head - work.heads.first) * work.num_rows;
      for (int r = work.rows.first; r < work.rows.end; r += kPanel) {
        const int count = work.rows.end - r < kPanel ? work.rows.end - r : kPanel;
        OfRows::score[count](scratch.queries + (base + r) * kQueryStride, tile, layer.key_size,
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
    OfRows::weigh[count](scratch.scores + (base + r) * kScoreStride + key, tiles, fetched,
                  row_stride, num_keys,
                  scratch.parts + int64_t(base + r) * stride + kPartHead, stride, size);
    fetched = tiles;
  }
}

static void weigh_segment(const Work& work, Scratch& scratch) {
  const bool is_single = work.heads.end - work.heads.first == 1;
  const int tiles = has_plain_values(work.layer) ? kStrip : kCopiedStrip;
  const int strip = is_single ? tiles * kTile : kTile;
  for (int key = work.keys.first; key < work.keys.end; key += strip) {
    const int left = work.keys.end - key;
    for (int head = work.heads.first; head < work.heads.end; ++head) {
      weigh_strip(work, head, key, left < strip ? left : strip, scratch);
    }
  }
}

// Fetches a tile of values by its number, for the time in which nothing else is read.
static void fetch_values(const Work& work, int number) {
  const float* from = has_plain_values(work.layer) ? values_at(work, number) : nullptr;
  if (from == nullptr) return;
  for (int i = 0; i < kTile * work.layer.value_size; i += 2 * kLanes) fetch(from + i);
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
                 scratch.queries + (head * num_rows + r) * kQueryStride);
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
