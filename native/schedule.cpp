#include "schedule.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace prefold {

namespace {

// Below this many positions a sequence shares its keys' loads with others; above, its own
// rows alone keep the multipliers busy.
constexpr int64_t kFewTokens = 16;

// Up to so many rows of all key heads together, a partition's keys are read for all heads
// at once: then time goes into reading.
constexpr int64_t kFewRows = kMaxRows / 2;

// Work items a thread should find, so that none waits long for the last.
constexpr int64_t kItemsPerThread = 3;

// Numbers in the parts of one sequence that is split for the sake of more items.
constexpr int64_t kMostPartNumbers = int64_t(1) << 22;

}  // namespace

Step::Step(std::vector<int32_t> blocks, const std::vector<int64_t>& table_lengths,
           const std::vector<int64_t>& starts, const std::vector<int64_t>& counts,
           int block_size)
    : blocks_(std::move(blocks)), block_size_(block_size) {
  std::vector<std::pair<const int32_t*, const int32_t*>> tables;
  const int32_t* at = blocks_.data();
  for (const int64_t length : table_lengths) {
    tables.emplace_back(at, at + length);
    at += length;
  }
  std::vector<size_t> order(tables.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::lexicographical_compare(tables[a].first, tables[a].second,
                                        tables[b].first, tables[b].second);
  });
  std::vector<int64_t> first_rows;
  for (const int64_t count : counts) {
    first_rows.push_back(num_rows_);
    num_rows_ += count;
  }
  for (const int32_t block : blocks_) {
    largest_block_ = std::max<int64_t>(largest_block_, block);
  }
  for (const size_t i : order) {
    const Member member{tables[i].first, starts[i], starts[i] + counts[i], first_rows[i]};
    int64_t shared = 0;
    if (!members_.empty()) {
      const Member& before = members_.back();
      const int64_t limit = std::min(before.end, member.end);
      const int64_t whole = (limit + block_size - 1) / block_size;
      const auto [mine, _] =
          std::mismatch(member.blocks, member.blocks + whole, before.blocks);
      shared = std::min<int64_t>((mine - member.blocks) * block_size, limit);
    }
    members_.push_back(member);
    shared_.push_back(shared - shared % kShared);
  }
}

const Schedule& Step::schedule(const Layer& layer, int64_t window, int num_threads) {
  for (const Schedule& known : schedules_) {
    if (known.window == window && known.heads == layer.heads &&
        known.kv_heads == layer.kv_heads && known.value_size == layer.value_size &&
        known.num_threads == num_threads) {
      return known;
    }
  }
  Schedule made{window, layer.heads, layer.kv_heads, layer.value_size, num_threads,
                {},     {},          {},             {},               {},
                {},     {},          0};
  const int num_members = int(members_.size());
  const int group = layer.heads / layer.kv_heads;
  int64_t tile_tokens = std::max(kMaxRows / group, 1);
  const auto first_key = [&](int64_t position) {
    return window == 0 ? 0 : std::max<int64_t>(position + 1 - window, 0);
  };
  int64_t last_partition = -1;
  const auto num_items = [&](int64_t tokens) {
    int64_t count = 0;
    for (const Member& member : members_) {
      count += (member.end - member.start + tokens - 1) / tokens * layer.kv_heads;
    }
    return count;
  };
  while (num_items(tile_tokens) < kItemsPerThread * num_threads &&
         tile_tokens > 1 && tile_tokens * group >= 2 * kBatchRows) {
    tile_tokens /= 2;
  }
  const bool is_scarce = num_items(tile_tokens) < kItemsPerThread * num_threads;
  for (int i = 0; i < num_members; ++i) {
    const Member& member = members_[i];
    const int64_t tokens = member.end - member.start;
    const int64_t first = first_key(member.start) / kPartition;
    const int64_t partitions = (member.end - 1) / kPartition + 1 - first;
    const int64_t parts = tokens * layer.heads * partitions;
    const bool is_split =
        tokens <= kFewTokens ||
        (is_scarce && parts * part_numbers(layer.value_size) <= kMostPartNumbers);
    made.first_partition.push_back(first);
    made.num_partitions.push_back(is_split ? partitions : 0);
    made.part_base.push_back(made.num_parts);
    if (is_split) {
      made.num_parts += parts;
      last_partition = std::max(last_partition, first + partitions - 1);
      continue;
    }
    for (int64_t at = member.start; at < member.end; at += tile_tokens) {
      made.tiles.push_back({i, at, std::min(at + tile_tokens, member.end)});
    }
  }
  // The longest first, so that the last ones are short.
  std::stable_sort(made.tiles.begin(), made.tiles.end(),
                   [](const WholeTile& a, const WholeTile& b) { return a.end > b.end; });
  for (int64_t partition = 0; partition <= last_partition; ++partition) {
    const int64_t start = partition * kPartition;
    for (int first = 0; first < num_members;) {
      const auto takes_part = [&](int i) {
        return made.num_partitions[i] > 0 && partition >= made.first_partition[i] &&
               start < members_[i].end;
      };
      int end = first + 1;
      if (takes_part(first)) {
        while (end < num_members && shared_[end] > start && takes_part(end)) ++end;
        const int before = int(made.segments.size());
        add_segments(made, start, first, end, start);
        int64_t rows = 0;
        for (int i = first; i < end; ++i) {
          rows += (members_[i].end - members_[i].start) * group;
        }
        const bool is_joint = rows * layer.kv_heads <= kFewRows;
        const int step = is_joint ? layer.kv_heads : 1;
        for (int head = 0; head < layer.kv_heads; head += step) {
          made.units.push_back({partition, first, end, before,
                                int32_t(made.segments.size()), {head, head + step}});
        }
      }
      first = end;
    }
  }
  add_chains(made);
  schedules_.push_back(std::move(made));
  return schedules_.back();
}

// Puts units in the order of chains.
void Step::add_chains(Schedule& schedule) const {
  std::vector<PartUnit>& units = schedule.units;
  const auto rows_of = [](const PartUnit& unit) {
    return std::tuple(unit.first_member, unit.end_member, unit.heads.first);
  };
  std::stable_sort(units.begin(), units.end(), [&](const PartUnit& a, const PartUnit& b) {
    return rows_of(a) < rows_of(b);
  });
  // Whether no row is of a position before the partition.
  const auto has_all_rows = [&](const PartUnit& unit) {
    return std::all_of(members_.begin() + unit.first_member, members_.begin() + unit.end_member,
                       [&](const Member& member) {
                         return member.start >= unit.partition * kPartition;
                       });
  };
  const int group = schedule.heads / schedule.kv_heads;
  for (int i = 0; i < int(units.size()); ++i) {
    const PartUnit& unit = units[i];
    const bool has_all = has_all_rows(unit);
    if (i > 0 && rows_of(units[i - 1]) == rows_of(unit) &&
        units[i - 1].partition + 1 == unit.partition && has_all == has_all_rows(units[i - 1])) {
      schedule.chains.back().end_unit = i + 1;
      continue;
    }
    int64_t num_rows = 0;
    for (int m = unit.first_member; m < unit.end_member; ++m) {
      num_rows += (members_[m].end - members_[m].start) * group;
    }
    const bool has_room = num_rows * (unit.heads.end - unit.heads.first) <= kMaxRows;
    schedule.chains.push_back(
        {i, i + 1, schedule.window == 0 && unit.partition == 0 && has_all && has_room});
  }
  std::stable_sort(schedule.chains.begin(), schedule.chains.end(),
                   [](const Chain& a, const Chain& b) {
                     return a.end_unit - a.first_unit > b.end_unit - b.first_unit;
                   });
}

// Members [first, end) share all keys before `key`. What they share from there on is one
// segment; behind it they fall into groups that share more.
void Step::add_segments(Schedule& schedule, int64_t start, int first, int end,
                        int64_t key) {
  const int64_t limit = start + kPartition;
  int64_t shared = end - first == 1
                       ? members_[first].end
                       : *std::min_element(shared_.begin() + first + 1,
                                           shared_.begin() + end);
  shared = std::min(shared, limit);
  if (shared > key) {
    schedule.segments.push_back(
        {first, end, int32_t(key - start), int32_t(shared - start)});
  }
  if (shared >= limit || end - first == 1) return;
  for (int from = first; from < end;) {
    int to = from + 1;
    while (to < end && shared_[to] > shared) ++to;
    add_segments(schedule, start, from, to, std::max(key, shared));
    from = to;
  }
}

}  // namespace prefold
