// What the steps of a segment's products read on a matrix unit, one after the other, and what is
// fetched meanwhile. Part of the kernel.
#pragma once

#include "beside.inl"

namespace PREFOLD_ISA {

// Steps whose products are added to the same sums, one after the other.
template <typename Beside> struct Group {
  int count;
  const uint16_t* rows;  // pieces of the first row
  float* sums;
  int64_t stride;
  bool begins;
  Beside beside;  // what is done meanwhile
};

// Where the tiles of a range of keys are, as far as they can be used where they are, or read in
// one run: of the first head, and from one head to the next.
struct Places {
  const float* keys[kPartition / kTile];
  const float* values[kPartition / kTile];
  int64_t next_keys, next_values;
};

// From `first` on, counted from a partition's start.
static void find_tiles(const Layer& layer, const Member& member, int64_t start, Span keys,
                       Places& to) {
  const float* pool = static_cast<const float*>(layer.pool);
  for (int key = keys.first; key < keys.end; key += kTile) {
    const Place place = find(layer, member, 0, start + key);
    to.keys[key / kTile] = pool + place.key;
    to.values[key / kTile] = pool + place.value;
  }
  to.next_keys = int64_t(layer.block_size) * layer.key_size;
  to.next_values = int64_t(layer.block_size) * layer.value_size;
}

// Tiles of some heads in the order of memory, of which processors go on to read what follows.
class Stream {
 public:
  Stream(const float* const* tiles, int num_tiles, int64_t offset, int64_t lines)
      : tiles_(tiles), num_tiles_(num_tiles), offset_(offset), lines_(lines) {}

  bool is_done() const { return tile_ >= num_tiles_; }

  // Sets where the next lines begin, or `otherwise` behind the last one.
  void next(int lines, const float* otherwise, Runs& runs) {
    for (int i = 0; i < kWays; ++i) {
      runs.of[i] = tile_ + i < num_tiles_ ? tiles_[tile_ + i] + offset_ + line_ * kLine
                                          : otherwise;
    }
    line_ += lines / kWays;
    if (line_ >= lines_) {
      line_ = 0;
      tile_ += kWays;
    }
  }

 private:
  const float* const* tiles_;
  int num_tiles_;
  int64_t offset_, lines_;
  int tile_ = 0;
  int64_t line_ = 0;
};

// What all steps of a segment have in common.
class Steps {
 public:
  Steps(const Work& work, Scratch& scratch, float* edge)
      : work_(work),
        scratch_(scratch),
        edge_(edge),
        num_heads_(work.heads.end - work.heads.first),
        first_key_(work.keys.first - work.keys.first % kDepth),
        is_plain_(has_plain_values(work.layer)),
        // A tile's heads are one run.
        has_runs_(is_plain_ && work.layer.block_size == kTile) {
    if (is_plain_) {
      find_tiles(work.layer, work.member, work.start, {first_key_, work.keys.end}, places_);
    }
  }

 protected:
  int first_row(int head) const { return head * work_.num_rows + work_.rows.first; }
  bool has_key(int key) const { return key < work_.keys.end; }

  // Where a tile is copied to: two of them stay until the next but one are read.
  float* copy_of(int index) const {
    return scratch_.tiles + (num_copied_ % 2 * 2 + index) * kTile * kMaxSize;
  }

  const Work& work_;
  Scratch& scratch_;
  float* const edge_;
  const int num_heads_, first_key_;
  const bool is_plain_, has_runs_;
  Places places_{};
  int num_copied_ = 0;
};

// P tiles of keys after the other, of all heads before the next ones are, since the keys of a
// block lie side by side; each in steps along the head.
template <int P> class KeySteps : Steps {
 public:
  static constexpr int64_t kRowPiece = kQueryPiece;

  KeySteps(const Work& work, Scratch& scratch, float* edge, const uint16_t* queries)
      : Steps(work, scratch, edge),
        queries_(queries),
        per_head_((work.layer.key_size + kDepth - 1) / kDepth),
        // What comes next.
        ahead_(places_.values + first_key_ / kTile,
               has_runs_ ? (work.keys.end - first_key_ + kTile - 1) / kTile : 0,
               work.heads.first * places_.next_values,
               int64_t(num_heads_) * work.layer.value_size),
        key_(first_key_),
        group_key_(first_key_) {}

  bool has_group() const { return has_key(group_key_); }

  Group<Nothing> next_group() {
    const int row = first_row(group_head_);
    const Group<Nothing> group{
        per_head_, queries_ + row * kDepth,
        scratch_.scores + row * kScoreStride + group_key_, kScoreStride, true, {}};
    if (++group_head_ == num_heads_) {
      group_head_ = 0;
      group_key_ += kKeys;
    }
    return group;
  }

  bool has_columns() const { return has_key(key_); }

  void next_columns(Columns& made) {
    if (part_ == 0) read();
    const int left = work_.layer.key_size - part_ * kDepth;
    const float* const from = one_.data + part_ * kDepth * one_.stride;
    made.is_whole = left >= kDepth;
    made.from.set(from, from + kDepth / 2 * one_.stride, one_.stride,
                  P > 1 ? other_.data - one_.data : 0);
    ahead_.next(kLines, from, made.ahead);
    if (!made.is_whole) {
      for (int d = 0; d < kDepth; ++d) {
        for (int i = 0; i < kKeys; ++i) {
          const float* tile = i < kTile ? from : from + made.from.other - kTile;
          edge_[d * kKeys + i] = d < left ? tile[d * one_.stride + i] : 0.0f;
        }
      }
      made.from.set(edge_, edge_ + kDepth / 2 * kKeys, kKeys, kTile);
    }
    if (++part_ < per_head_) return;
    part_ = 0;
    if (++head_ < num_heads_) return;
    head_ = 0;
    key_ += kKeys;
  }

 private:
  static constexpr int kKeys = P * kTile, kLines = P * kDepth;

  // Of two tiles, or twice of one, whose second scores are hidden later.
  void read() {
    ++num_copied_;
    one_ = tile(0);
    if constexpr (P > 1) {
      if (has_key(key_ + kTile)) other_ = tile(1);
      else other_.data = one_.data;
    }
  }

  Tile tile(int index) {
    const int key = key_ + index * kTile, left = work_.keys.end - key;
    const int head = work_.heads.first + head_;
    if (is_plain_) {
      return {places_.keys[key / kTile] + head * places_.next_keys, work_.layer.block_size};
    }
    return key_tile(work_.layer, work_.member, head, work_.start + key,
                    left < kTile ? left : kTile,
                    copy_of(index));
  }

  const uint16_t* const queries_;
  const int per_head_;
  Stream ahead_;
  int key_, head_ = 0, part_ = 0;
  int group_key_, group_head_ = 0;
  Tile one_{}, other_{};
};

// Steps along the keys of a head, each for P tiles of columns after the other. Scores of a step
// turn into weights while the one before is multiplied.
template <int P> class ValueSteps : Steps {
 public:
  static constexpr int64_t kRowPiece = kWeightPiece;

  // `weights` has room for two steps.
  ValueSteps(const Work& work, Scratch& scratch, float* edge, uint16_t* weights, float* totals,
             float* sums, int64_t width, Stream& ahead)
      : Steps(work, scratch, edge),
        weights_(weights),
        totals_(totals),
        sums_(sums),
        width_(width),
        num_groups_((work.layer.value_size + kColumns - 1) / kColumns),
        ahead_(ahead),
        spot_{0, first_key_, 0},
        group_(spot_) {
    softening(spot_, 0, num_rows()).do_all();
  }

  bool has_group() const { return group_.head < num_heads_; }

  Group<Softening> next_group() {
    const int row = first_row(group_.head);
    Spot next = group_;
    advance_key(next);
    const int n = next.head < num_heads_ ? num_rows() : 0;
    const Group<Softening> group{1,
                                 weights_of(group_),
                                 sums_ + row * width_ + group_.column * kColumns,
                                 width_,
                                 false,
                                 softening(next, n * group_.column / num_groups_,
                                           n * (group_.column + 1) / num_groups_)};
    advance(group_);
    return group;
  }

  bool has_columns() const { return spot_.head < num_heads_; }

  void next_columns(Columns& made) {
    const int key = spot_.key, column = spot_.column * kColumns;
    if (column == 0) {
      ++num_copied_;
      upper_ = tile(0);
      lower_ = tile(1);
    }
    const int left = work_.layer.value_size - column;
    made.is_whole = key >= work_.keys.first && key + kDepth <= work_.keys.end &&
                    left >= kColumns;
    made.from.set(upper_.data + column, lower_.data + column, upper_.stride, kTileColumns);
    ahead_.next(kLines, upper_.data, made.ahead);
    if (!made.is_whole) {
      for (int i = 0; i < kDepth; ++i) {
        const Tile& tile = i < kTile ? upper_ : lower_;
        const float* from = tile.data + i % kTile * tile.stride + column;
        const bool is_seen = key + i >= work_.keys.first && key + i < work_.keys.end;
        for (int j = 0; j < kColumns; ++j) {
          edge_[i * kColumns + j] = is_seen && j < left ? from[j] : 0.0f;
        }
      }
      made.from.set(edge_, edge_ + kDepth / 2 * kColumns, kColumns, kTileColumns);
    }
    advance(spot_);
  }

 private:
  static constexpr int kColumns = P * kTileColumns, kLines = P * kDepth;

  struct Spot {
    int head, key, column;
    int step = 0;  // counted over all heads
  };

  void advance_key(Spot& spot) const {
    ++spot.step;
    spot.key += kDepth;
    if (has_key(spot.key)) return;
    spot.key = first_key_;
    ++spot.head;
  }

  void advance(Spot& spot) const {
    if (++spot.column < num_groups_) return;
    spot.column = 0;
    advance_key(spot);
  }

  int num_rows() const { return work_.rows.end - work_.rows.first; }

  uint16_t* weights_of(const Spot& spot) const {
    return weights_ + spot.step % 2 * kPieces * kWeightPiece;
  }

  // Of rows [first, end) of a segment.
  Softening softening(const Spot& spot, int first, int end) const {
    const int64_t row = first_row(spot.head), stride = part_numbers(work_.layer.value_size);
    return {scratch_.scores + row * kScoreStride + spot.key, scratch_.parts + row * stride,
            stride, totals_ + row * kTile, weights_of(spot), first, end};
  }

  // Nothing is read of a tile without keys that are seen.
  Tile tile(int index) {
    const int key = spot_.key + index * kTile, left = work_.keys.end - key;
    const int head = work_.heads.first + spot_.head;
    float* const copy = copy_of(index);
    if (left <= 0 || key + kTile <= work_.keys.first) return {copy, 0};
    if (is_plain_) {
      return {places_.values[key / kTile] + head * places_.next_values,
              work_.layer.value_size};
    }
    return value_tile(work_.layer, work_.member, head, work_.start + key,
                      left < kTile ? left : kTile, copy);
  }

  uint16_t* const weights_;
  float* const totals_;
  float* const sums_;
  const int64_t width_;
  const int num_groups_;
  Stream& ahead_;
  Spot spot_, group_;
  Tile upper_{}, lower_{};
};

}  // namespace PREFOLD_ISA
