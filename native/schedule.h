// Which thread-sized pieces of work a step's attention is cut into.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel.h"

namespace prefold {

// Rows of one sequence over all the keys they see: sums stay in scratch memory.
struct WholeTile {
  int32_t member;
  int64_t first, end;  // positions
};

// Rows of sequences that share keys, over one partition: parts are stored, and merged when
// all are there. So one long sequence keeps several threads busy.
struct PartUnit {
  int64_t partition;
  int32_t first_member, end_member;
  int32_t first_segment, end_segment;
  HeadRange heads;
};

// Units of the same rows over consecutive partitions. Where these are all that come first for the
// rows, parts can be merged as they are made.
struct Chain {
  int32_t first_unit, end_unit;
  bool is_first;
};

// What layers of one geometry and window do in a step.
struct Schedule {
  int64_t window;
  int32_t heads, kv_heads, value_size, num_threads;
  std::vector<WholeTile> tiles;
  std::vector<PartUnit> units;  // those of a chain one after the other
  std::vector<Chain> chains;    // the longest first
  std::vector<Segment> segments;
  // By member: where its parts begin, the partition of the first, and how many partitions
  // each row has. Parts are [rows][heads][partitions]; none for members of whole tiles.
  std::vector<int64_t> part_base, first_partition, num_partitions;
  int64_t num_parts = 0;
};

// The sequences of a step, in the order of their block tables, so that those which share
// leading blocks are neighbours.
class Step {
 public:
  Step(std::vector<int32_t> blocks, const std::vector<int64_t>& table_lengths,
       const std::vector<int64_t>& starts, const std::vector<int64_t>& counts,
       int block_size);

  const std::vector<Member>& members() const { return members_; }
  int64_t num_rows() const { return num_rows_; }
  int64_t largest_block() const { return largest_block_; }
  int block_size() const { return block_size_; }

  // Valid until the next call.
  const Schedule& schedule(const Layer& layer, int64_t window, int num_threads);

 private:
  void add_segments(Schedule& schedule, int64_t start, int first, int end, int64_t key);
  void add_chains(Schedule& schedule) const;

  std::vector<int32_t> blocks_;
  std::vector<Member> members_;
  // Tokens, a multiple of kShared, that a member shares with the one before it.
  std::vector<int64_t> shared_;
  std::vector<Schedule> schedules_;
  int64_t num_rows_ = 0, largest_block_ = -1;
  int block_size_;
};

}  // namespace prefold
