// A segment's products on a matrix unit (see pieces.inl). Part of the kernel.
//
// Equal bits for a row, whatever is computed with it: a score is summed over steps of kDepth
// numbers of the head in order, a weighted sum over steps of kDepth keys, counted from the
// partition's first; a key that a row does not see has weight 0 in its step.
#pragma once

#include "steps.inl"

namespace PREFOLD_ISA {

static_assert(kTile == kTileColumns && kPartition % kDepth == 0 && kShared % kDepth == 0,
              "steps are cut where partitions and shared keys are");

static_assert(kMaxRows / 2 <= kHeadRows, "of two heads or more, each has so many at most");

// Steps that are split ahead, while earlier ones are multiplied.
constexpr int kLead = 1, kRing = kLead + 1;

constexpr int kMostSteps = kMaxSize / kDepth;

// As floats.
constexpr int64_t kQueries = kMostSteps * kPieces * kQueryPiece / 2;
constexpr int64_t kWeights = 2 * kPieces * kWeightPiece / 2;
constexpr int64_t kTotals = int64_t(kMaxRows) * kTile;
constexpr int64_t kSplit = kRing * 2 * kPiecesNumbers / 2;
constexpr int64_t kSums = int64_t(kMaxRows) * kMaxSize;
constexpr int64_t kCorner = int64_t(kTileRows) * kScoreStride;
constexpr int64_t kEdge = int64_t(kDepth) * 2 * kTileColumns;
static_assert(kQueries + kWeights + kTotals + kSplit + kSums + kCorner + kEdge <=
                  kMatrixNumbers,
              "scratch memory holds a call");

// The products of one call of the kernel.
class Products {
 public:
  // Keys that are counted as one where a range of them begins or ends.
  static constexpr int kGrain = kDepth;

  Products(const Layer& layer, int num_rows, Scratch& scratch)
      : layer_(layer),
        num_rows_(num_rows),
        scratch_(scratch),
        width_((layer.value_size + kDepth - 1) / kDepth * kDepth),
        sums_(scratch.matrices),
        totals_(sums_ + kSums),
        corner_(totals_ + kTotals),
        edge_(corner_ + kCorner),
        queries_(reinterpret_cast<uint16_t*>(edge_ + kEdge)),
        weights_(queries_ + 2 * kQueries),
        split_(weights_ + 2 * kWeights),
        ahead_(find_ahead()) {
    std::memset(sums_, 0, sizeof(float) * width_ * num_rows);
    std::memset(totals_, 0, sizeof(float) * kTile * num_rows);
  }

  void take_query(int row, const float* from, float scale) const {
    uint16_t* to = queries_ + row * kDepth;
    for (int d = 0; d < layer_.key_size; d += kDepth, to += kPieces * kQueryPiece) {
      const int left = layer_.key_size - d;
      float numbers[kDepth];
      const float* own = from + d;
      if (left < kDepth) {
        std::memset(numbers, 0, sizeof numbers);
        std::memcpy(numbers, own, left * sizeof(float));
        own = numbers;
      }
      store_row_pairs<kQueryPiece>(multiply(load_wide(own), scale),
                                   multiply(load_wide(own + kWide), scale), to);
    }
  }

  void score(const Work& work) const {
    for_tiles(work, [&](auto r, auto p) {
      KeySteps<decltype(p)::value> steps(work, scratch_, edge_, queries_);
      run(r, p, steps, work.rows.end - work.rows.first);
    });
  }

  // The rest is done as the values are weighed.
  void soften(int row, const Seen& seen, float softcap, const Work&) const {
    float* const part = scratch_.parts + row * part_numbers(layer_.value_size);
    part[0] = find_top(scratch_.scores + row * kScoreStride, seen, softcap);
  }

  void weigh(const Work& work) {
    for_tiles(work, [&](auto r, auto p) {
      ValueSteps<decltype(p)::value> steps(work, scratch_, edge_, weights_, totals_, sums_,
                                           width_, ahead_);
      run(r, p, steps, work.rows.end - work.rows.first);
    });
  }

  void finish() const {
    const int64_t stride = part_numbers(layer_.value_size);
    for (int64_t row = 0; row < num_rows_; ++row) {
      float* const part = scratch_.parts + row * stride;
      part[1] = sum(load_wide(totals_ + row * kTile));
      std::memcpy(part + kPartHead, sums_ + row * width_,
                  sizeof(float) * padded_size(layer_.value_size));
    }
  }

 private:
  // The keys of what comes next, where a tile's heads are one run.
  Stream find_ahead() {
    const Ahead& next = scratch_.ahead;
    if (next.end_key == 0 || !has_plain_values(layer_) || layer_.block_size != kTile) {
      return {nullptr, 0, 0, 0};
    }
    find_tiles(layer_, *next.member, next.start, {0, next.end_key}, next_);
    return {next_.keys, (next.end_key + kTile - 1) / kTile,
            next.heads.first * next_.next_keys,
            int64_t(next.heads.end - next.heads.first) * layer_.key_size};
  }

  // How many tiles of rows there are, and of columns at a time.
  template <typename Run> static void for_tiles(const Work& work, Run run) {
    const int num_rows = work.rows.end - work.rows.first;
    if (num_rows <= kTileRows) run(Time<1>{}, Time<2>{});
    else if (num_rows <= 2 * kTileRows) run(Time<2>{}, Time<2>{});
    else run(Time<3>{}, Time<1>{});
  }

  SplitColumns held(int number) const {
    uint16_t* one = split_ + number % kRing * 2 * kPiecesNumbers;
    uint16_t* other = one + kPiecesNumbers;
    return {{one, one + kPieceNumbers}, {other, other + kPieceNumbers}};
  }

  template <int R, int P, typename Kind>
  void run(Time<R>, Time<P>, Kind& steps, int num_rows) const {
    const int tile_rows = (num_rows + R - 1) / R, last = num_rows - (R - 1) * tile_rows;
    const TilesInUse tiles{tile_rows};
    int split = 0, done = 0;
    // Never copied: a vector of what has just been written in parts is there only when all that
    // comes before has been carried out, the unit's work too.
    Columns columns[2];
    int now = 0;
    while (split < kLead && steps.has_columns()) {
      steps.next_columns(columns[now]);
      split_step<P>(columns[now].from, held(split++));
    }
    bool has_next = steps.has_columns();
    if (has_next) steps.next_columns(columns[now]);
    constexpr int64_t kRowPiece = Kind::kRowPiece;
    while (steps.has_group()) {
      const auto group = steps.next_group();
      const int64_t next_row = tile_rows * group.stride;
      float* const last_sums = group.sums + (R - 1) * next_row;
      // The last tile's other rows belong to nobody, or to other rows.
      const bool is_cut = last < tile_rows;
      const Sums sums{group.sums, is_cut ? corner_ : last_sums, next_row, kTileColumns,
                      group.stride};
      if (group.begins) {
        clear_sums<R, P>();
      } else {
        if (is_cut) copy_sums<P>(last_sums, last, group.stride, corner_);
        load_sums<R, P>(sums);
      }
      TiledRows rows{group.rows, tile_rows * kDepth};
      for (int i = 0; i < group.count; ++i, ++done, rows.first += kPieces * kRowPiece) {
        const Columns& next = columns[now];
        Columns& later = columns[now ^ 1];
        if (has_next && next.is_whole) {
          has_next = steps.has_columns();
          if (has_next) steps.next_columns(later);
          add_and_split<R, P, kRowPiece>(rows, held(done), next, has_next ? later : next,
                                         held(split++), group.beside);
        } else {
          add_only<R, P, kRowPiece>(rows, held(done));
          group.beside.do_all();
          if (!has_next) continue;
          split_step<P>(next.from, held(split++));
          has_next = steps.has_columns();
          if (has_next) steps.next_columns(later);
        }
        now ^= 1;
      }
      store_sums<R, P>(sums);
      if (is_cut) copy_sums<P>(corner_, last, group.stride, last_sums);
    }
  }

  template <int P>
  static void copy_sums(const float* from, int num_rows, int64_t stride, float* to) {
    for (int row = 0; row < num_rows; ++row) {
      std::memcpy(to + row * stride, from + row * stride, sizeof(float) * P * kTileColumns);
    }
  }

  const Layer& layer_;
  const int num_rows_;
  Scratch& scratch_;
  const int64_t width_;
  float* const sums_;
  float* const totals_;
  float* const corner_;
  float* const edge_;
  uint16_t* const queries_;
  uint16_t* const weights_;
  uint16_t* const split_;
  Places next_{};
  Stream ahead_;
};

}  // namespace PREFOLD_ISA
