#include "attention.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

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

  // Whole tiles come first, since they take longest.
  int64_t num_items() const { return num_tiles() + int64_t(schedule_.units.size()); }

  void run(int64_t item, Scratch& scratch) const {
    if (item >= num_tiles()) {
      run_unit(schedule_.units[item - num_tiles()], scratch);
      return;
    }
    const int head = int(item % layer_.kv_heads);
    run_tile(schedule_.tiles[item / layer_.kv_heads], {head, head + 1}, scratch);
  }

  // The first keys of an item, as far as it waits for memory rather than for arithmetic.
  Ahead ahead(int64_t item) const {
    if (item < num_tiles() || item >= num_items()) return {};
    const PartUnit& unit = schedule_.units[item - num_tiles()];
    const Segment& segment = schedule_.segments[unit.first_segment];
    return {&members_[segment.first_member], segment.end_key, unit.partition * kPartition,
            unit.heads};
  }

  // All heads of one position whose parts were stored.
  void merge(int member, int64_t position) const {
    const Range own = partitions_of(position);
    for (int head = 0; head < layer_.heads; ++head) {
      float* sum = part(member, position, head, own.first);
      for (int64_t partition = own.first + 1; partition < own.end; ++partition) {
        kernel_.merge(sum, part(member, position, head, partition), layer_.value_size);
      }
      finish(sum, row_of(members_[member], position), head);
    }
  }

 private:
  struct Range {
    int64_t first, end;
  };

  int64_t num_tiles() const { return int64_t(schedule_.tiles.size()) * layer_.kv_heads; }

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

  void run_unit(const PartUnit& unit, Scratch& scratch) const {
    const int64_t end_key = (unit.partition + 1) * kPartition;
    const int64_t window = inputs_.options.window;
    const int num_heads = unit.heads.end - unit.heads.first;
    const int limit = num_heads == 1 ? kernel_.batch_rows : kMaxRows / num_heads;
    Row rows[kMaxRows];
    int num_rows = 0;
    for (int i = unit.first_member; i < unit.end_member; ++i) {
      const Member& member = members_[i];
      const int64_t first = std::max(member.start, unit.partition * kPartition);
      const int64_t end =
          window == 0 ? member.end : std::min(member.end, end_key + window - 1);
      for (int64_t position = first; position < end; ++position) {
        for (int head = 0; head < group_; ++head) {
          rows[num_rows++] = make_row(i, position, head);
          if (num_rows == limit) {
            store_parts(unit, rows, num_rows, scratch);
            num_rows = 0;
          }
        }
      }
    }
    if (num_rows > 0) store_parts(unit, rows, num_rows, scratch);
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

  // One sequence's rows, over all partitions in order.
  void run_rows(const Row* rows, int num_rows, HeadRange heads, Scratch& scratch) const {
    const Member& member = members_[rows[0].member];
    const Range all{partitions_of(rows[0].position).first,
                    partitions_of(rows[num_rows - 1].position).end};
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
        kernel_.attend(layer_, members_.data(), inputs_.query, inputs_.options,
                       rows + first, count, heads, &segment, 1, partition, scratch);
        for (int r = first; r < first + count; ++r) {
          const Range own = partitions_of(rows[r].position);
          if (partition < own.first || partition >= own.end) continue;
          float* sum = scratch.state + r * part_numbers_;
          const float* now = scratch.parts + (r - first) * part_numbers_;
          if (partition == own.first) {
            std::memcpy(sum, now, sizeof(float) * part_numbers_);
          } else {
            kernel_.merge(sum, now, layer_.value_size);
          }
        }
      }
    }
    for (int r = 0; r < num_rows; ++r) {
      finish(scratch.state + r * part_numbers_, rows[r].packed,
             heads.first * group_ + rows[r].head);
    }
  }

  void store_parts(const PartUnit& unit, const Row* rows, int num_rows,
                   Scratch& scratch) const {
    kernel_.attend(layer_, members_.data(), inputs_.query, inputs_.options, rows, num_rows,
                   unit.heads, schedule_.segments.data() + unit.first_segment,
                   unit.end_segment - unit.first_segment, unit.partition, scratch);
    const float* from = scratch.parts;
    for (int kv_head = unit.heads.first; kv_head < unit.heads.end; ++kv_head) {
      for (int r = 0; r < num_rows; ++r, from += part_numbers_) {
        const Row& row = rows[r];
        std::memcpy(part(row.member, row.position, kv_head * group_ + row.head,
                         unit.partition),
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
  const int64_t num_items = call.num_items();
  std::atomic<int64_t> next_item{0};
  const int64_t num_merges = int64_t(merges.size());
#pragma omp parallel num_threads(num_threads)
  {
    Scratch& scratch = workspace.scratch(omp_get_thread_num());
#pragma omp for schedule(static)
    for (int64_t i = 0; i < num_writes; ++i) call.write(writes[i]);
    // Each thread takes an item ahead, so that it knows what to fetch meanwhile.
    int64_t next = next_item.fetch_add(1);
    while (next < num_items) {
      const int64_t item = next;
      next = next_item.fetch_add(1);
      scratch.ahead = call.ahead(next);
      call.run(item, scratch);
    }
#pragma omp barrier
#pragma omp for schedule(static)
    for (int64_t i = 0; i < num_merges; ++i) call.merge(merges[i].first, merges[i].second);
  }
}

}  // namespace prefold
