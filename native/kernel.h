// What the schedule and a kernel for one instruction set say to each other.
#pragma once

#include <cstdint>

namespace prefold {

// Keys that are scored together, and keys of a partition. The second is part of the
// numerics: sums over keys are cut at its multiples, counted from position 0.
constexpr int kTile = 16;
constexpr int kPartition = 256;

// Sequences share a multiple of so many keys: steps of an instruction are not cut.
constexpr int kShared = 32;

// Query rows that one call of a kernel holds in its scratch memory.
constexpr int kMaxRows = 96;

// Rows whose queries and scores stay in the first cache while keys and values pass by.
constexpr int kBatchRows = 24;

constexpr int kMaxSize = 256;

// Queries and scores of one row after another; a power of two would put all into a few cache
// sets.
constexpr int kQueryStride = kMaxSize + kTile;
constexpr int kScoreStride = kPartition + kTile;

// The last one has scales: what is read is a number times the scale of its head and token.
enum class Number { float32, bfloat16, float16, int8 };

constexpr int kLargestInt8 = 127;

// One sequence's share of a step.
struct Member {
  const int32_t* blocks;
  int64_t start;      // position of the first new token
  int64_t end;        // position behind the last one
  int64_t first_row;  // of the packed batch
};

// One query head's row.
struct Row {
  int64_t packed;  // row of the packed batch
  int64_t position;
  int32_t member;
  int32_t head;  // among those that share a key head
};

// Keys of a partition that a range of members has in the same blocks.
struct Segment {
  int32_t first_member, end_member;
  int32_t first_key, end_key;  // counted from the partition's first
};

// One layer's part of the pool. In a block, keys are [kv_heads][key_size][block_size],
// values [kv_heads][block_size][value_size], and scales float32 [kv_heads][block_size].
// Sizes and offsets count numbers, also those of scales, which only int8 has.
struct Layer {
  void* pool;
  Number number;
  int64_t block_numbers;  // of all layers
  int64_t key_offset, value_offset;
  int64_t key_scale_offset, value_scale_offset;
  int32_t block_size, heads, kv_heads, key_size, value_size;
};

// [heads][rows][size], the last axis without gaps.
struct Heads {
  const float* data;
  int64_t head_stride, row_stride;
};

struct Options {
  float scale;    // makes scores logarithms to base 2, or arguments of tanh
  float softcap;  // in base 2; 0 for none
  int64_t window; // 0 for none
};

struct HeadRange {
  int32_t first, end;  // key heads
};

// Keys that the same thread reads next; fetched while it weighs values.
struct Ahead {
  const Member* member;
  int32_t end_key;  // counted from the partition's first; 0 for nothing
  int64_t start;    // the partition's first position
  HeadRange heads;
};

// For a kernel that multiplies matrices.
constexpr int64_t kMatrixNumbers = 132 << 10;

// Memory of one thread.
struct Scratch {
  float* queries;  // [kMaxRows][kQueryStride]
  float* scores;   // [kMaxRows][kScoreStride]
  float* parts;    // [kMaxRows][part_numbers]
  float* state;    // [kMaxRows][part_numbers]
  float* tiles;    // [4 * kTile][kMaxSize]
  float* matrices; // [kMatrixNumbers]
  // Whether the queries are those of the next call's rows: set by the caller, who made the last
  // call for the same rows and heads.
  bool has_queries;
  Ahead ahead;
};

// A part is [top, total, 6 unused, sums of weighted values]: the highest score of a row
// over some keys, the sum of 2 ** (score - top), and the same sum with values.
constexpr int kPartHead = 8;

inline int padded_size(int size) { return (size + 7) / 8 * 8; }
inline int part_numbers(int value_size) { return kPartHead + padded_size(value_size); }

struct Kernel {
  const char* name;
  // Rows that go through a partition together, of at most kMaxRows.
  int batch_rows;
  // Writes keys and values of the positions [first, end) of a member to their slots.
  void (*write)(const Layer&, const Member&, int64_t first, int64_t end, const Heads& keys,
                const Heads& values);
  // Fills scratch.parts, [heads][num_rows], with every row's part over one partition. The
  // rows are those of each key head; all heads' together are at most kMaxRows.
  void (*attend)(const Layer&, const Member* members, const Heads& query, const Options&,
                 const Row* rows, int num_rows, HeadRange heads, const Segment* segments,
                 int num_segments, int64_t partition, Scratch&);
  // Adds rows' parts to their sums over the partitions before.
  void (*merge)(float* sums, const float* parts, int num_rows, int value_size);
  // Turns a sum of parts into the result. A null sink is none.
  void (*finish)(const float* sum, const float* sink, int value_size, float* out);
};

extern const Kernel kPortableKernel;
extern const Kernel kAvx2Kernel;
extern const Kernel kAvx512Kernel;
extern const Kernel kAmxKernel;

}  // namespace prefold
