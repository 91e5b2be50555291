// The attention kernel, compiled once for each instruction set.
//
// Equal bits for a row, whatever is computed with it: a score adds its products along the
// head's axis in order, in a lane of its own; a weighted sum adds its values along the
// keys in order, in a lane of its own; sums of weights depend on key positions alone.
// Blocking, sharing and masks only choose what is computed when. Online softmax over
// parts: Milakov & Gimelshein 2018; rows that share keys: Juravsky et al. 2024.

#if defined(PREFOLD_AMX)
#include "matrices.inl"
#else
#include "vectors.inl"
#endif

namespace PREFOLD_ISA {

// ---- softmax ------------------------------------------------------------------------

// Scores of the keys from `key` on, those outside [low, high) hidden.
PREFOLD_INLINE Floats hide(Floats scores, int key, int low, int high) {
  const Floats nothing = spread(-__builtin_inff());
  const Ints at = Ints{0, 1, 2, 3, 4, 5, 6, 7} + key;
  scores = at < low ? nothing : scores;
  return at >= high ? nothing : scores;
}

// Turns scores of the keys [first, end), a multiple of the grain, into weights relative to the
// highest one, and calls keep(key, weights) for each grain; keys outside [low, high) get weight
// 0. Counted from the partition's first key.
template <typename Keep>
static void soften(float* scores, int first, int end, int low, int high, float softcap,
                   float* part, Keep keep) {
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
  for (int key = first; key < end; key += Products::kGrain) {
    Wide weights[Products::kGrain / kTile];
    for (int i = 0; i < Products::kGrain / kTile; ++i) {
      const Wide score = load_wide(scores + key + i * kTile);
      weights[i] = power_of_two(add(score, spread_wide(-top)));
      totals = add(totals, weights[i]);
    }
    keep(key, weights);
  }
  part[0] = top;
  part[1] = sum(low_of(totals) + high_of(totals));
}

// ---- one partition ------------------------------------------------------------------

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
  Products products(layer, num_heads * num_rows, scratch);
  Span seen{kPartition, 0};  // by any row
  for (int r = 0; r < num_rows; ++r) {
    const Span own = seen_by(rows[r], partition, options.window);
    seen.first = own.first < seen.first ? own.first : seen.first;
    seen.end = own.end > seen.end ? own.end : seen.end;
    for (int head = 0; head < num_heads; ++head) {
      const int at = head * num_rows + r;
      copy_query(layer, query, options.scale, rows[r], heads.first + head,
                 scratch.queries + at * kQueryStride);
      products.take_query(at);
    }
  }
  seen.first -= seen.first % kTile;
  const auto work_of = [&](const Segment& segment) {
    const Span keys{seen.first > segment.first_key ? seen.first : segment.first_key,
                    seen.end < segment.end_key ? seen.end : segment.end_key};
    return Work{layer, members[segment.first_member], heads, partition * kPartition,
                keys,  rows_of(rows, num_rows, segment), num_rows};
  };
  const auto each_segment = [&](auto run) {
    for (int s = 0; s < num_segments; ++s) {
      const Work work = work_of(segments[s]);
      if (work.rows.first < work.rows.end && work.keys.first < work.keys.end) run(work);
    }
  };
  each_segment([&](const Work& work) { products.score(work); });
  constexpr int kGrain = Products::kGrain;
  const int first_key = seen.first - seen.first % kGrain;
  const int end = (seen.end + kGrain - 1) / kGrain * kGrain;
  const Work first = work_of(segments[0]);
  for (int r = 0; r < num_rows; ++r) {
    const Span own = seen_by(rows[r], partition, options.window);
    for (int head = 0; head < num_heads; ++head) {
      const int at = head * num_rows + r;
      products.fetch_ahead(first);
      soften(scratch.scores + at * kScoreStride, first_key, end, own.first, own.end,
             options.softcap, scratch.parts + at * stride,
             [&](int key, const Wide* weights) { products.take_weights(at, key, weights); });
    }
  }
  each_segment([&](const Work& work) { products.weigh(work); });
  products.finish();
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
