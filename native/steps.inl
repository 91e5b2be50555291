// What the steps of a segment's products read on a matrix unit, one after the other, and what is
// fetched meanwhile. Part of the kernel.
#pragma once

#include <utility>

#include "pieces.inl"
#include "segment.inl"

namespace PREFOLD_ISA {

// Pieces of rows lie as [steps][pieces][rows][kDepth]; what stands behind the last row of a
// tile may be any numbers.
constexpr int64_t kRowPiece = int64_t(kMaxRows + kTileRows) * kDepth;
constexpr int64_t kRowStep = kPieces * kRowPiece;

// Numbers of one step: kDepth rows of one or two tiles of columns, `other` numbers apart.
struct Source {
  const float *upper, *lower;  // halves of the rows
  int64_t stride, other;
};

// Runs of memory that are fetched side by side: processors go on to read what follows each.
constexpr int kWays = 4;

// Lines that are fetched for each row whose scores turn into weights.
constexpr int kFetchedLines = 2 * kWays;

struct Runs {
  const float* of[kWays];
};

struct Columns {
  Source from;
  Runs ahead;  // what is fetched meanwhile, as much as is split
  bool is_whole;  // or has been copied, to be split at once
};

template <int P, int kPair>
PREFOLD_INLINE void split_rows(const Source& from, const SplitColumns& to) {
  const float *upper = from.upper + kPair * from.stride,
              *lower = from.lower + kPair * from.stride;
  store_pairs<kPieces>(load_wide(upper), load_wide(lower),
                       [&](int i) { return to.one.piece(i) + kPair * kDepth; });
  if constexpr (P > 1) {
    store_pairs<kPieces>(load_wide(upper + from.other), load_wide(lower + from.other),
                         [&](int i) { return to.other.piece(i) + kPair * kDepth; });
  }
}

template <int P, int... kPair>
PREFOLD_INLINE void split_all(const Source& from, const SplitColumns& to,
                              std::integer_sequence<int, kPair...>) {
  (split_rows<P, kPair>(from, to), ...);
}

template <int P>
__attribute__((noinline)) static void split_step(const Source& from, const SplitColumns& to) {
  split_all<P>(from, to, std::make_integer_sequence<int, kDepth / 2>{});
}

template <int P, int kFirst, int... kPair>
PREFOLD_INLINE void fetch_and_split(const Columns& next, const Source& later,
                                    const SplitColumns& to,
                                    std::integer_sequence<int, kPair...>) {
  const auto fetch_part = [&](int part) __attribute__((always_inline)) {
    for (int i = 2 * P * part; i < 2 * P * (part + 1); ++i) {
      fetch(next.ahead.of[i % kWays] + i / kWays * kLine);
    }
  };
  const auto fetch_near = [&](const float* row) __attribute__((always_inline)) {
    __builtin_prefetch(row, 0, 3);
    if constexpr (P > 1) __builtin_prefetch(row + later.other, 0, 3);
  };
  ((fetch_part(kFirst + kPair), fetch_near(later.upper + (kFirst + kPair) * later.stride),
    fetch_near(later.lower + (kFirst + kPair) * later.stride),
    split_rows<P, kFirst + kPair>(next.from, to)),
   ...);
}

// Adds a step's products, and splits the next one between them; the one after that is brought
// into the first cache.
template <int R, int P>
__attribute__((noinline)) static void add_and_split(TiledRows rows, const SplitColumns& columns,
                                                    const Columns& given,
                                                    const Source& given_later,
                                                    const SplitColumns& to) {
  constexpr int kTimes = times_of(kPieces), kPairs = kDepth / 2;
  const Columns next = given;
  const Source later = given_later;
  add_small<R, P, kPieces, kRowPiece>(
      rows, columns, [&](auto time) __attribute__((always_inline)) {
        constexpr int kTime = decltype(time)::value;
        constexpr int kFirst = kPairs * kTime / kTimes;
        constexpr int kEnd = kPairs * (kTime + 1) / kTimes;
        fetch_and_split<P, kFirst>(next, later, to,
                                   std::make_integer_sequence<int, kEnd - kFirst>{});
      });
  add_large<R, P, kRowPiece>(rows, columns, true);
}

template <int R, int P>
__attribute__((noinline)) static void add_only(TiledRows rows, const SplitColumns& columns) {
  add_small<R, P, kPieces, kRowPiece>(rows, columns, [](auto) {});
  add_large<R, P, kRowPiece>(rows, columns, true);
}

// Steps whose products are added to the same sums, one after the other.
struct Group {
  int count;
  const uint16_t* rows;  // pieces of the first row
  float* sums;
  int64_t stride;
  bool begins;
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

  // Returns where the next lines begin, or `otherwise` behind the last one.
  Runs next(int lines, const float* otherwise) {
    Runs runs;
    for (int i = 0; i < kWays; ++i) {
      runs.of[i] = tile_ + i < num_tiles_ ? tiles_[tile_ + i] + offset_ + line_ * kLine
                                          : otherwise;
    }
    line_ += lines / kWays;
    if (line_ >= lines_) {
      line_ = 0;
      tile_ += kWays;
    }
    return runs;
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

  Group next_group() {
    const int row = first_row(group_head_);
    const Group group{per_head_, queries_ + row * kDepth,
                      scratch_.scores + row * kScoreStride + group_key_, kScoreStride, true};
    if (++group_head_ == num_heads_) {
      group_head_ = 0;
      group_key_ += kKeys;
    }
    return group;
  }

  bool has_columns() const { return has_key(key_); }

  Columns next_columns() {
    if (part_ == 0) read();
    const int left = work_.layer.key_size - part_ * kDepth;
    const float* const from = one_.data + part_ * kDepth * one_.stride;
    Columns made{{from, from + kDepth / 2 * one_.stride, one_.stride,
                  other_.data - one_.data},
                 ahead_.next(kLines, from), true};
    if (left < kDepth) {
      for (int d = 0; d < kDepth; ++d) {
        for (int i = 0; i < kKeys; ++i) {
          const float* tile = i < kTile ? from : from + made.from.other - kTile;
          edge_[d * kKeys + i] = d < left ? tile[d * one_.stride + i] : 0.0f;
        }
      }
      made = {{edge_, edge_ + kDepth / 2 * kKeys, kKeys, kTile}, {}, false};
    }
    if (++part_ < per_head_) return made;
    part_ = 0;
    if (++head_ < num_heads_) return made;
    head_ = 0;
    key_ += kKeys;
    return made;
  }

 private:
  static constexpr int kKeys = P * kTile, kLines = P * kDepth;

  // Of two tiles, or twice of one, whose second scores are hidden later.
  void read() {
    ++num_copied_;
    one_ = other_ = tile(0);
    if (P > 1 && has_key(key_ + kTile)) other_ = tile(1);
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

// Steps along the keys: all of a head for P tiles of columns after the other, or, where tiles
// are copied first, all columns of a step after the other.
template <int P> class ValueSteps : Steps {
 public:
  ValueSteps(const Work& work, Scratch& scratch, float* edge, const uint16_t* weights,
             float* sums, int64_t width, Stream& ahead)
      : Steps(work, scratch, edge),
        weights_(weights),
        sums_(sums),
        width_(width),
        ahead_(ahead),
        spot_{0, 0, first_key_},
        group_(spot_) {}

  bool has_group() const { return group_.head < num_heads_; }

  Group next_group() {
    const int row = first_row(group_.head);
    const int left = (work_.keys.end - first_key_ + kDepth - 1) / kDepth;
    const Group group{is_plain_ ? left : 1,
                      weights_ + group_.key / kDepth * kRowStep + row * kDepth,
                      sums_ + row * width_ + group_.column, width_, false};
    for (int i = 0; i < group.count; ++i) advance(group_);
    return group;
  }

  bool has_columns() const { return spot_.head < num_heads_; }

  Columns next_columns() {
    const int key = spot_.key, column = spot_.column;
    if (is_plain_ || column == 0) {
      ++num_copied_;
      upper_ = tile(0);
      lower_ = tile(1);
    }
    const int left = work_.layer.value_size - column;
    const bool is_whole = key >= work_.keys.first && key + kDepth <= work_.keys.end &&
                          left >= kColumns;
    Columns made{{upper_.data + column, lower_.data + column,
                  upper_.stride, kTileColumns},
                 ahead_.next(kLines, upper_.data), true};
    if (!is_whole) {
      for (int i = 0; i < kDepth; ++i) {
        const Tile& tile = i < kTile ? upper_ : lower_;
        const float* from = tile.data + i % kTile * tile.stride + column;
        const bool is_seen = key + i >= work_.keys.first && key + i < work_.keys.end;
        for (int j = 0; j < kColumns; ++j) {
          edge_[i * kColumns + j] = is_seen && j < left ? from[j] : 0.0f;
        }
      }
      made = {{edge_, edge_ + kDepth / 2 * kColumns, kColumns, kTileColumns}, {}, false};
    }
    advance(spot_);
    return made;
  }

 private:
  static constexpr int kColumns = P * kTileColumns, kLines = P * kDepth;

  struct Spot {
    int head, column, key;
  };

  void advance(Spot& spot) const {
    const auto next_key = [&] {
      spot.key += kDepth;
      if (has_key(spot.key)) return false;
      spot.key = first_key_;
      return true;
    };
    const auto next_column = [&] {
      spot.column += kColumns;
      if (spot.column < work_.layer.value_size) return false;
      spot.column = 0;
      return true;
    };
    const bool is_done = is_plain_ ? next_key() && next_column() : next_column() && next_key();
    if (is_done) ++spot.head;
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

  const uint16_t* const weights_;
  float* const sums_;
  const int64_t width_;
  Stream& ahead_;
  Spot spot_, group_;
  Tile upper_{}, lower_{};
};

}  // namespace PREFOLD_ISA
