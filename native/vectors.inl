// A segment's products on vectors. Part of the kernel, compiled once for each instruction set.
#pragma once

#include "products.inl"
#include "softmax.inl"

namespace PREFOLD_ISA {

constexpr int kLead = 4;  // tiles that are fetched ahead of the one that is used

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

// Fetches a tile of values by its number, for the time in which nothing else is read.
static void fetch_values(const Work& work, int number) {
  const float* from = has_plain_values(work.layer) ? values_at(work, number) : nullptr;
  if (from == nullptr) return;
  for (int i = 0; i < kTile * work.layer.value_size; i += kLine) fetch(from + i);
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

// The products of one call of the kernel.
class Products {
 public:
  Products(const Layer& layer, int num_rows, Scratch& scratch)
      : layer_(layer), scratch_(scratch), stride_(part_numbers(layer.value_size)) {
    std::memset(scratch.parts, 0, sizeof(float) * stride_ * num_rows);
  }

  // Keys that are counted as one where a range of them begins or ends.
  static constexpr int kGrain = kTile;

  void take_query(int row, const float* from, float scale) const {
    float* const to = scratch_.queries + row * kQueryStride;
    for (int d = 0; d < layer_.key_size; ++d) to[d] = from[d] * scale;
  }

  void score(const Work& work) const { score_segment(work, scratch_); }

  // Turns a row's scores into weights; fetches a tile of values, since nothing else is read.
  void soften(int row, const Seen& seen, float softcap, const Work& work) {
    fetch_values(work, fetched_++);
    float* const scores = scratch_.scores + row * kScoreStride;
    float* const part = scratch_.parts + row * stride_;
    const float top = find_top(scores, seen, softcap);
    Wide totals = spread_wide(0.0f);
    for (int key = seen.first; key < seen.end; key += kTile) {
      const Wide weights = weights_of(scores + key, top);
      totals = add(totals, weights);
      store(scores + key, weights);
    }
    part[0] = top;
    part[1] = sum(totals);
  }

  void weigh(const Work& work) const { weigh_segment(work, scratch_); }
  void finish() const {}

 private:
  const Layer& layer_;
  Scratch& scratch_;
  const int64_t stride_;
  int fetched_ = kLead;  // the tiles before have been fetched when scores are there
};

}  // namespace PREFOLD_ISA
