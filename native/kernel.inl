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

// ---- one partition ------------------------------------------------------------------

static const float* query_of(const Layer& layer, const Heads& query, const Row& row,
                             int head) {
  const int64_t query_head = int64_t(head) * (layer.heads / layer.kv_heads) + row.head;
  return query.data + query_head * query.head_stride + row.packed * query.row_stride;
}

static void attend(const Layer& layer, const Member* members, const Heads& query,
                   const Options& options, const Row* rows, int num_rows, HeadRange heads,
                   const Segment* segments, int num_segments, int64_t partition,
                   Scratch& scratch) {
  const int num_heads = heads.end - heads.first;
  Products products(layer, num_heads * num_rows, scratch);
  Span seen{kPartition, 0};  // by any row
  for (int r = 0; r < num_rows; ++r) {
    const Span own = seen_by(rows[r], partition, options.window);
    seen.first = own.first < seen.first ? own.first : seen.first;
    seen.end = own.end > seen.end ? own.end : seen.end;
    for (int head = 0; head < num_heads && !scratch.has_queries; ++head) {
      products.take_query(head * num_rows + r,
                          query_of(layer, query, rows[r], heads.first + head), options.scale);
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
  const int end_key = (seen.end + kGrain - 1) / kGrain * kGrain;
  const Work first = work_of(segments[0]);
  for (int r = 0; r < num_rows; ++r) {
    const Seen keys{first_key, end_key, seen_by(rows[r], partition, options.window)};
    for (int head = 0; head < num_heads; ++head) {
      products.soften(head * num_rows + r, keys, options.softcap, first);
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

static void merge(float* sums, const float* parts, int num_rows, int value_size) {
  const int64_t stride = part_numbers(value_size);
  for (int first = 0; first < num_rows; first += kLanes) {
    const int count = num_rows - first < kLanes ? num_rows - first : kLanes;
    float* const sum = sums + first * stride;
    const float* const part = parts + first * stride;
    float before[kLanes] = {}, now[kLanes] = {}, top[kLanes];
    for (int r = 0; r < count; ++r) {
      before[r] = sum[r * stride];
      now[r] = part[r * stride];
    }
    const Floats tops = larger(load(before), load(now));
    store(top, tops);
    store(before, power_of_two(load(before) - tops));
    store(now, power_of_two(load(now) - tops));
    for (int r = 0; r < count; ++r) {
      float* const own = sum + r * stride;
      const float* const other = part + r * stride;
      own[0] = top[r];
      own[1] = own[1] * before[r] + other[1] * now[r];
      scale_and_add(own + kPartHead, before[r], other + kPartHead, now[r],
                    padded_size(value_size));
    }
  }
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
