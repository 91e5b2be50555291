#include "attention.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "chains.h"

namespace prefold {

namespace {

// Positions that one thread writes at a time: the keys of a block are side by side in memory.
constexpr int64_t kWrittenTokens = 16;

struct Write {
  int32_t member;
  int64_t first, end;
};

class Call {
 public:
  Call(const Kernel& kernel, const Step& step, const Schedule& schedule,
       const Layer& layer, const Inputs& inputs, const Result& result,
       Workspace& workspace)
      : kernel_(kernel),
        members_(step.members()),
        schedule_(schedule),
        layer_(layer),
        inputs_(inputs),
        result_(result),
        workspace_(workspace),
        group_(layer.heads / layer.kv_heads),
        part_numbers_(part_numbers(layer.value_size)) {}

  void write(const Write& piece) const {
    kernel_.write(layer_, members_[piece.member], piece.first, piece.end, inputs_.keys,
                  inputs_.values);
  }

  int64_t num_tiles() const { return int64_t(schedule_.tiles.size()) * layer_.kv_heads; }

  void run_tile(int64_t index, Scratch& scratch) const {
    const int head = int(index % layer_.kv_heads);
    run_tile(schedule_.tiles[index / layer_.kv_heads], {head, head + 1}, scratch);
  }

  // Each thread takes a unit ahead, so that it knows what to fetch meanwhile.
  void run_units(Claims& claims, Scratch& scratch) const {
    for (int i; (i = claims.take_chain()) != Claims::kNothing;) {
      follow(schedule_.chains[i], i, claims, scratch);
    }
    for (int unit = claims.take_last(); unit != Claims::kNothing;) {
      const int next = claims.take_last();
      scratch.ahead = ahead(next);
      store_unit(schedule_.units[unit], scratch);
      unit = next;
    }
  }

  // All heads of one position whose parts were stored.
  void merge(int member, int64_t position) const {
    const Range own = partitions_of(position);
    for (int head = 0; head < layer_.heads; ++head) {
      float* sum = part(member, position, head, own.first);
      const int64_t merged = workspace_.merged()[member * layer_.kv_heads + head / group_];
      for (int64_t partition = std::max(merged, own.first + 1); partition < own.end;
           ++partition) {
        kernel_.merge(sum, part(member, position, head, partition), 1, layer_.value_size);
      }
      finish(sum, row_of(members_[member], position), head);
    }
  }

 private:
  struct Range {
    int64_t first, end;
  };

  // The first keys of a unit, which waits for memory rather than for arithmetic.
  Ahead ahead(int index) const {
    if (index == Claims::kNothing) return {};
    const PartUnit& unit = schedule_.units[index];
    const Segment& segment = schedule_.segments[unit.first_segment];
    return {&members_[segment.first_member], segment.end_key, unit.partition * kPartition,
            unit.heads};
  }

  void run_tile(const WholeTile& tile, HeadRange heads, Scratch& scratch) const {
    Row rows[kMaxRows];
    int num_rows = 0;
    for (int64_t position = tile.first; position < tile.end; ++position) {
      for (int head = 0; head < group_; ++head) {
        rows[num_rows++] = make_row(tile.member, position, head);
        if (num_rows == kMaxRows) {
          run_rows(rows, num_rows, heads, scratch);
          num_rows = 0;
        }
      }
    }
    if (num_rows > 0) run_rows(rows, num_rows, heads, scratch);
  }

  // Computes what is left of a chain from its first unit on.
  void follow(const Chain& chain, int index, Claims& claims, Scratch& scratch) const {
    const bool is_single = chain.end_unit - chain.first_unit == 1;
    int64_t merged = 0;
    int last_before = -1;
    const PartUnit* last = nullptr;
    for (int at = claims.take_first(index); at != Claims::kNothing;) {
      const int next = claims.take_first(index);
      scratch.ahead = ahead(next == Claims::kNothing ? claims.peek() : next);
      const PartUnit& unit = schedule_.units[at];
      at = next;
      if (!chain.is_first || is_single) {
        store_unit(unit, scratch);
        continue;
      }
      for_batches(unit, [&](const Row* rows, int num_rows, int before) {
        // A chain's rows are the same in all units.
        attend(unit, rows, num_rows, before == last_before, scratch);
        last_before = before;
        add_parts(scratch.parts, num_rows * num_heads(unit), unit.partition == 0,
                  scratch.state + before * part_numbers_);
      });
      last = &unit;
      merged = unit.partition + 1;
    }
    if (last == nullptr) return;
    for_batches(*last, [&](const Row* rows, int num_rows, int before) {
      store_parts(scratch.state + before * part_numbers_, rows, num_rows, last->heads, 0);
    });
    for (int member = last->first_member; member < last->end_member; ++member) {
      for (int head = last->heads.first; head < last->heads.end; ++head) {
        workspace_.merged()[member * layer_.kv_heads + head] = merged;
      }
    }
  }

  void store_unit(const PartUnit& unit, Scratch& scratch) const {
    for_batches(unit, [&](const Row* rows, int num_rows, int) {
      attend(unit, rows, num_rows, false, scratch);
      store_parts(scratch.parts, rows, num_rows, unit.heads, unit.partition);
    });
  }

  static int num_heads(const PartUnit& unit) { return unit.heads.end - unit.heads.first; }

  // Calls take(rows, num_rows, before) for as many of a unit's rows as go through a partition
  // together, `before` being how many rows of all heads came before.
  template <typename Take> void for_batches(const PartUnit& unit, Take take) const {
    const int64_t end_key = (unit.partition + 1) * kPartition;
    const int64_t window = inputs_.options.window;
    const int limit =
        num_heads(unit) == 1 ? kernel_.batch_rows : kMaxRows / num_heads(unit);
    Row rows[kMaxRows];
    int num_rows = 0, before = 0;
    const auto take_all = [&] {
      take(rows, num_rows, before);
      before += num_rows * num_heads(unit);
      num_rows = 0;
    };
    for (int i = unit.first_member; i < unit.end_member; ++i) {
      const Member& member = members_[i];
      const int64_t first = std::max(member.start, unit.partition * kPartition);
      const int64_t end =
          window == 0 ? member.end : std::min(member.end, end_key + window - 1);
      for (int64_t position = first; position < end; ++position) {
        for (int head = 0; head < group_; ++head) {
          rows[num_rows++] = make_row(i, position, head);
          if (num_rows == limit) take_all();
        }
      }
    }
    if (num_rows > 0) take_all();
  }

  static int64_t row_of(const Member& member, int64_t position) {
    return member.first_row + position - member.start;
  }

  Row make_row(int member, int64_t position, int head) const {
    return {row_of(members_[member], position), position, member, head};
  }

  Range partitions_of(int64_t position) const {
    const int64_t window = inputs_.options.window;
    const int64_t low = window == 0 ? 0 : std::max<int64_t>(position + 1 - window, 0);
    return {low / kPartition, position / kPartition + 1};
  }

  // Where a row's part over a partition is kept; `head` is the query head.
  float* part(int member_index, int64_t position, int head, int64_t partition) const {
    const Member& member = members_[member_index];
    const int64_t index = ((position - member.start) * layer_.heads + head) *
                              schedule_.num_partitions[member_index] +
                          partition - schedule_.first_partition[member_index];
    return workspace_.parts() +
           (schedule_.part_base[member_index] + index) * part_numbers_;
  }

  void finish(const float* sum, int64_t packed, int head) const {
    const float* sink = inputs_.sinks == nullptr ? nullptr : inputs_.sinks + head;
    kernel_.finish(sum, sink, layer_.value_size,
                   result_.data + (packed * layer_.heads + head) * layer_.value_size);
  }

  // Adds rows' parts over one partition to their sums over those before it.
  void add_parts(const float* parts, int num_rows, bool is_first, float* sums) const {
    if (is_first) {
      std::memcpy(sums, parts, sizeof(float) * part_numbers_ * num_rows);
      return;
    }
    kernel_.merge(sums, parts, num_rows, layer_.value_size);
  }

  // One sequence's rows, over all partitions in order.
  void run_rows(const Row* rows, int num_rows, HeadRange heads, Scratch& scratch) const {
    const Member& member = members_[rows[0].member];
    const Range all{partitions_of(rows[0].position).first,
                    partitions_of(rows[num_rows - 1].position).end};
    int last_first = -1;
    for (int64_t partition = all.first; partition < all.end; ++partition) {
      const int64_t start = partition * kPartition;
      const Segment segment{rows[0].member, rows[0].member + 1, 0,
                            int32_t(std::min<int64_t>(member.end - start, kPartition))};
      const int64_t next = start + kPartition;
      scratch.ahead = {};
      if (partition + 1 < all.end) {
        scratch.ahead = {&member, int32_t(std::min<int64_t>(member.end - next, kPartition)),
                         next, heads};
      }
      for (int first = 0; first < num_rows; first += kernel_.batch_rows) {
        const int count = std::min(num_rows - first, kernel_.batch_rows);
        scratch.has_queries = first == last_first;
        last_first = first;
        kernel_.attend(layer_, members_.data(), inputs_.query, inputs_.options,
                       rows + first, count, heads, &segment, 1, partition, scratch);
        for (int r = first; r < first + count; ++r) {
          const Range own = partitions_of(rows[r].position);
          if (partition < own.first || partition >= own.end) continue;
          add_parts(scratch.parts + (r - first) * part_numbers_, 1, partition == own.first,
                    scratch.state + r * part_numbers_);
        }
      }
    }
    for (int r = 0; r < num_rows; ++r) {
      finish(scratch.state + r * part_numbers_, rows[r].packed,
             heads.first * group_ + rows[r].head);
    }
  }

  // Fills scratch.parts.
  void attend(const PartUnit& unit, const Row* rows, int num_rows, bool has_queries,
              Scratch& scratch) const {
    scratch.has_queries = has_queries;
    kernel_.attend(layer_, members_.data(), inputs_.query, inputs_.options, rows, num_rows,
                   unit.heads, schedule_.segments.data() + unit.first_segment,
                   unit.end_segment - unit.first_segment, unit.partition, scratch);
  }

  void store_parts(const float* from, const Row* rows, int num_rows, HeadRange heads,
                   int64_t partition) const {
    for (int kv_head = heads.first; kv_head < heads.end; ++kv_head) {
      for (int r = 0; r < num_rows; ++r, from += part_numbers_) {
        const Row& row = rows[r];
        std::memcpy(part(row.member, row.position, kv_head * group_ + row.head, partition),
                    from, sizeof(float) * part_numbers_);
      }
    }
  }

  const Kernel& kernel_;
  const std::vector<Member>& members_;
  const Schedule& schedule_;
  const Layer& layer_;
  const Inputs& inputs_;
  const Result& result_;
  Workspace& workspace_;
  const int group_;
  const int64_t part_numbers_;
};

}  // namespace

Workspace::Memory Workspace::allocate(int64_t numbers) {
  const size_t bytes = (size_t(numbers) * sizeof(float) + 63) / 64 * 64;
  void* memory = std::aligned_alloc(64, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return Memory(static_cast<float*>(memory));
}

void Workspace::reserve(int num_threads, int64_t part_numbers_wanted) {
  constexpr int64_t kParts = int64_t(kMaxRows) * (kPartHead + kMaxSize);
  constexpr int64_t kQueries = int64_t(kMaxRows) * kQueryStride;
  constexpr int64_t kScores = int64_t(kMaxRows) * kScoreStride;
  constexpr int64_t kTiles = 4 * kTile * kMaxSize;
  while (int(scratches_.size()) < num_threads) {
    memories_.push_back(allocate(kQueries + kScores + 2 * kParts + kTiles + kMatrixNumbers));
    float* at = memories_.back().get();
    Scratch made{};
    made.queries = at;
    made.scores = at += kQueries;
    made.parts = at += kScores;
    made.state = at += kParts;
    made.tiles = at += kParts;
    made.matrices = at += kTiles;
    scratches_.push_back(made);
  }
  if (part_numbers_wanted > part_room_) {
    parts_.reset();
    part_room_ = 0;
    parts_ = allocate(part_numbers_wanted);
    part_room_ = part_numbers_wanted;
  }
}

void attend(const Kernel& kernel, Step& step, const Layer& layer, const Inputs& inputs,
            const Result& result, int num_threads, Workspace& workspace) {
  const Schedule& schedule = step.schedule(layer, inputs.options.window, num_threads);
  workspace.reserve(num_threads, schedule.num_parts * part_numbers(layer.value_size));
  workspace.merged().assign(step.members().size() * layer.kv_heads, 0);
  std::vector<Write> writes;
  std::vector<std::pair<int32_t, int64_t>> merges;
  const std::vector<Member>& members = step.members();
  for (int32_t i = 0; i < int32_t(members.size()); ++i) {
    for (int64_t at = members[i].start; at < members[i].end; at += kWrittenTokens) {
      writes.push_back({i, at, std::min(at + kWrittenTokens, members[i].end)});
    }
    if (schedule.num_partitions[i] == 0) continue;
    for (int64_t at = members[i].start; at < members[i].end; ++at) {
      merges.emplace_back(i, at);
    }
  }
  const int64_t width = int64_t(layer.heads) * layer.value_size;
  const int64_t padding = result.num_rows - step.num_rows();
  std::memset(result.data + step.num_rows() * width, 0, sizeof(float) * padding * width);

  const Call call(kernel, step, schedule, layer, inputs, result, workspace);
  const int64_t num_writes = int64_t(writes.size());
  const int64_t num_tiles = call.num_tiles(), num_merges = int64_t(merges.size());
  std::atomic<int64_t> next_tile{0};
  Claims claims(schedule.chains);
#pragma omp parallel num_threads(num_threads)
  {
    Scratch& scratch = workspace.scratch(omp_get_thread_num());
#pragma omp for schedule(static)
    for (int64_t i = 0; i < num_writes; ++i) call.write(writes[i]);
    // Whole tiles come first, since they take longest.
    for (int64_t i; (i = next_tile.fetch_add(1)) < num_tiles;) call.run_tile(i, scratch);
    call.run_units(claims, scratch);
#pragma omp barrier
#pragma omp for schedule(static)
    for (int64_t i = 0; i < num_merges; ++i) call.merge(merges[i].first, merges[i].second);
  }
}

}  // namespace prefold
