// The packed linear layer for x86-64 processors with AMX.
//
// Equal bits for a row, whatever is computed with it: an output is summed over a chunk, the small
// products of its steps in order and then the large ones, over the chunks in order, and then the
// bias is added. Few roundings of large sums lose little, also where one product outweighs all
// others. Weights are split a step before they are multiplied, by instructions that run beside
// those of the unit.
#define PREFOLD_AVX512
#define PREFOLD_ISA prefold_linear_amx
#include "cursor.inl"

namespace PREFOLD_ISA {

static_assert(kPanelOutputs == kTileColumns, "a panel is as wide as a tile");

constexpr int64_t kChunkSteps = kInputChunk / kDepth;
static_assert(kInputChunk % kDepth == 0, "a step is of one chunk");

// Steps whose rows are split at once.
constexpr int64_t kMostSteps = 24;
static_assert(kMostSteps % kChunkSteps == 0, "a chunk is split at once");

// Tiles of rows of a block, and panels whose sums are kept until the next rows are split.
constexpr int64_t kMostTiles = 8, kMostPanels = 64;

// Steps that are split ahead, while earlier ones are multiplied. All rows of more than two tiles
// are multiplied with a chunk before the next one is split.
constexpr int64_t kLead = 1;
constexpr int64_t kRing = kChunkSteps + kLead;

// From the step that is split to the one whose weights are fetched.
constexpr int64_t kAhead = 2;

// As floats.
constexpr int64_t kSplitRows = kMostTiles * kMostSteps * kPiecesNumbers / 2;
constexpr int64_t kSplitWeights = kRing * kGroupPanels * kPiecesNumbers / 2;
constexpr int64_t kPanelSums = kMostTiles * kTileNumbers;
constexpr int64_t kChunkSums = kGroupPanels * kPanelSums;
constexpr int64_t kTotals = kMostPanels * kPanelSums;
static_assert(kSplitRows + kSplitWeights + kChunkSums + kTotals <= kLinearScratchNumbers,
              "scratch memory holds a block");

// bfloat16 is a number's first piece, and has no others.
template <typename Word> constexpr int kPiecesOf = std::is_same_v<Word, float> ? kPieces : 1;

// Splits a pair of inputs of a panel; behind the last one they are zeros.
template <typename Word>
PREFOLD_INLINE void split_pair(const Word* from, int64_t num_inputs, int64_t pair,
                               Split<uint16_t> to) {
  const auto input = [&](int64_t number) __attribute__((always_inline)) {
    return number < num_inputs ? load_wide(from + number * Words<Word>::count) : Wide{};
  };
  store_pairs<kPiecesOf<Word>>(input(pair), input(kDepth / 2 + pair),
                               [&](int i) { return to.piece(i) + pair * kDepth; });
}

// A step of two panels that is split, and one that is fetched meanwhile.
template <typename Word> struct Next {
  Pair<Word> words, ahead;
  SplitColumns to;
  int64_t num_inputs;
};

template <typename Word>
PREFOLD_INLINE void fetch_pair(const Word* from) {
  constexpr int64_t kLine = 64 / sizeof(Word);
  // To the second cache: the first one is full of what is multiplied.
  for (int64_t i = 0; i < 2 * Words<Word>::count; i += kLine) {
    __builtin_prefetch(from + i, 0, 2);
  }
}

template <typename Word> static void split_step(const Next<Word>& next) {
  for (int64_t pair = 0; pair < kDepth / 2; ++pair) {
    split_pair(next.words.one, next.num_inputs, pair, next.to.one);
    split_pair(next.words.other, next.num_inputs, pair, next.to.other);
  }
}

// Adds a step's small products, and splits a later step between them.
template <int R, int P, typename Word>
__attribute__((noinline)) static void add_and_split(TiledRows rows,
                                                    const SplitColumns& columns,
                                                    const Next<Word>& given) {
  constexpr int kTimes = times_of(kPiecesOf<Word>), kPairs = kDepth / 2;
  const Next<Word> next = given;
  const auto between = [&](auto time) __attribute__((always_inline)) {
    constexpr int kTime = decltype(time)::value;
    constexpr int kFirst = kPairs * kTime / kTimes, kEnd = kPairs * (kTime + 1) / kTimes;
#pragma GCC unroll 16
    for (int64_t pair = kFirst; pair < kEnd; ++pair) {
      const int64_t at = 2 * pair * Words<Word>::count;
      fetch_pair(next.ahead.one + at);
      split_pair(next.words.one, kDepth, pair, next.to.one);
      fetch_pair(next.ahead.other + at);
      split_pair(next.words.other, kDepth, pair, next.to.other);
    }
  };
  add_small<R, P, kPiecesOf<Word>>(rows, columns, between);
}

template <int R, int P, int kColumnPieces>
__attribute__((noinline)) static void add_only(TiledRows rows,
                                               const SplitColumns& columns) {
  add_small<R, P, kColumnPieces>(rows, columns, [](auto) {});
}

// Up to kMostTiles tiles of rows, all of as many rows; the last one may have more than the
// block, whose results nobody asks for.
template <typename Word> class Block {
 public:
  // `has_rows` if the block before was of the same rows.
  Block(const Product& product, Range rows, bool has_rows, float* scratch)
      : product_(product),
        rows_(rows),
        num_tiles_((rows.end - rows.first + kTileRows - 1) / kTileRows),
        tile_rows_((rows.end - rows.first + num_tiles_ - 1) / num_tiles_),
        num_steps_((product.weights.inputs + kDepth - 1) / kDepth),
        has_rows_(has_rows && num_steps_ <= kMostSteps),
        held_steps_(num_tiles_ > 2 ? kChunkSteps : kMostSteps),
        others_ring_(num_tiles_ > 2 ? kRing : kLead + 1),
        sums_(scratch),
        totals_(sums_ + kChunkSums),
        weights_(reinterpret_cast<uint16_t*>(totals_ + kTotals)),
        others_(weights_ + kRing * kGroupPanels * kPieceNumbers),
        split_rows_(weights_ + 2 * kSplitWeights) {}

  void run(Range panels) const {
    const TilesInUse tiles{int(tile_rows_)};
    for (int64_t first = panels.first; first < panels.end; first += kMostPanels) {
      const int64_t left = panels.end - first;
      const Range own{first, first + (left < kMostPanels ? left : kMostPanels)};
      for (int64_t step = 0; step < num_steps_; step += kMostSteps) {
        const int64_t rest = num_steps_ - step;
        const Range steps{step, step + (rest < kMostSteps ? rest : kMostSteps)};
        const bool has_rows = num_steps_ <= kMostSteps && first > panels.first;
        if (!has_rows && !has_rows_) split_rows(steps);
        add_steps(own, steps);
      }
    }
  }

 private:
  // Where a step's pieces are. First pieces stay until their chunk is complete; the others of two
  // tiles of rows, which are used once, soon give way to later ones.
  struct Slot {
    int64_t first, others;
  };

  Slot after(Slot slot) const {
    return {slot.first + 1 == kRing ? 0 : slot.first + 1,
            slot.others + 1 == others_ring_ ? 0 : slot.others + 1};
  }

  SplitColumns held(Slot slot) const {
    constexpr int64_t kOthers = kPiecesNumbers - kPieceNumbers;
    uint16_t* const first = weights_ + slot.first * kGroupPanels * kPieceNumbers;
    uint16_t* const others = others_ + slot.others * kGroupPanels * kOthers;
    return {{first, others}, {first + kPieceNumbers, others + kOthers}};
  }

  uint16_t* tile_of_rows(int64_t tile, int64_t step) const {
    return split_rows_ + (tile * kMostSteps + step) * kPiecesNumbers;
  }

  void split_rows(Range steps) const {
    const int64_t inputs = product_.weights.inputs;
    for (int64_t step = steps.first; step < steps.end; ++step) {
      for (int64_t tile = 0; tile < num_tiles_; ++tile) {
        const int64_t first = rows_.first + tile * tile_rows_;
        const int64_t left = rows_.end - first, count = left < tile_rows_ ? left : tile_rows_;
        const float* from = product_.rows + first * inputs + step * kDepth;
        uint16_t* to = tile_of_rows(tile, step - steps.first);
        for (int64_t row = 0; row < count; ++row, from += inputs, to += kDepth) {
          store_row(from, inputs - step * kDepth, to);
        }
      }
    }
  }

  // Some steps for group after group of panels.
  void add_steps(Range panels, Range steps) const {
    Cursor<Word> next(product_.weights, panels, steps), ahead = next;
    Slot split{0, 0};
    for (int64_t i = 0; i < kLead; ++i, next.advance(), split = after(split)) {
      split_step<Word>({next.words(), {}, held(split), next.num_inputs()});
    }
    for (int64_t i = 0; i < kLead + kAhead; ++i) ahead.advance();
    Feed feed{next, ahead, split};
    Slot slot{0, 0};
    for (int64_t panel = panels.first; panel < panels.end; panel += kGroupPanels) {
      const bool is_alone = panel + 1 == panels.end;
      for (int64_t step = steps.first; step < steps.end; step += held_steps_) {
        const int64_t left = steps.end - step;
        const Held own{totals(panels, panel), step, left < held_steps_ ? left : held_steps_,
                       step - steps.first, slot};
        for (int64_t tile = 0; tile < num_tiles_; tile += 2) {
          const bool is_last = tile + 1 == num_tiles_;
          if (is_last) slot = is_alone ? add<1, 1>(own, tile, feed) : add<1, 2>(own, tile, feed);
          else slot = is_alone ? add<2, 1>(own, tile, feed) : add<2, 2>(own, tile, feed);
        }
      }
      if (steps.end < num_steps_) continue;
      write_out(panel, totals(panels, panel));
      if (!is_alone) write_out(panel + 1, totals(panels, panel + 1));
    }
  }

  // What is split and fetched next, and where it is split to.
  struct Feed {
    Cursor<Word> next, ahead;
    Slot to;
  };

  // Some steps of a group of panels that one or two tiles of rows are multiplied with.
  struct Held {
    float* total;
    int64_t step, count;
    int64_t index;  // of the step among those whose rows are split
    Slot slot;
  };

  // Returns the slot behind the last step's.
  template <int R, int P> Slot add(const Held& own, int64_t tile, Feed& feed) const {
    constexpr int kColumnPieces = kPiecesOf<Word>;
    float* const total = own.total + tile * kTileNumbers;
    TiledRows rows{tile_of_rows(tile, own.index), kMostSteps * kPiecesNumbers};
    Slot slot = own.slot;
    int64_t in_chunk = own.step % kChunkSteps;
    for (int64_t i = 0; i < own.count; ++i, rows.first += kPiecesNumbers) {
      if (in_chunk == 0) clear_sums<R, P>();
      const SplitColumns columns = held(slot);
      if (tile > 0 || feed.next.is_over()) {
        add_only<R, P, kColumnPieces>(rows, columns);
      } else {
        const Next<Word> next{feed.next.words(), feed.ahead.words(), held(feed.to),
                              feed.next.num_inputs()};
        if (next.num_inputs >= kDepth) {
          add_and_split<R, P>(rows, columns, next);
        } else {
          add_only<R, P, kColumnPieces>(rows, columns);
          split_step(next);
        }
        feed.next.advance();
        feed.ahead.advance();
        feed.to = after(feed.to);
      }
      const int64_t step = own.step + i;
      if (++in_chunk == kChunkSteps || step + 1 == num_steps_) {
        add_larges<R, P>(rows, slot, in_chunk);
        add_chunk<R, P>(step < kChunkSteps, total);
        in_chunk = 0;
      }
      slot = after(slot);
    }
    return slot;
  }

  // Adds the large products of a chunk's steps, the last of which has these rows and this slot.
  template <int R, int P> void add_larges(TiledRows rows, Slot last, int64_t count) const {
    rows.first -= (count - 1) * kPiecesNumbers;
    int64_t first = last.first - (count - 1);
    if (first < 0) first += kRing;
    for (Slot slot{first, 0}; count > 0; --count, rows.first += kPiecesNumbers) {
      add_large<R, P>(rows, held(slot));
      slot.first = slot.first + 1 == kRing ? 0 : slot.first + 1;
    }
  }

  // Adds a chunk's sums to those of the chunks before it.
  template <int R, int P> void add_chunk(bool is_first, float* total) const {
    constexpr int64_t kLast = (R - 1) * kTileNumbers;
    float* const to = is_first ? total : sums_;
    store_sums<R, P>({to, to + kLast, kTileNumbers, kPanelSums, kTileColumns});
    if (is_first) return;
    for (int panel = 0; panel < P; ++panel) {
      for (int tile = 0; tile < R; ++tile) {
        const int64_t first = panel * kPanelSums + tile * kTileNumbers;
        for (int64_t at = first; at < first + tile_rows_ * kTileColumns; at += kWide) {
          store(total + at, load_wide(total + at) + load_wide(sums_ + at));
        }
      }
    }
  }

  // A panel's sums; they need no place of their own if no other rows are split meanwhile.
  float* totals(Range panels, int64_t panel) const {
    const int64_t slot = panel - panels.first;
    return totals_ + (num_steps_ > kMostSteps ? slot : slot % kGroupPanels) * kPanelSums;
  }

  void write_out(int64_t panel, const float* totals) const {
    const int64_t outputs = product_.weights.outputs, first = panel * kPanelOutputs;
    const int64_t left = outputs - first, count = left < kPanelOutputs ? left : kPanelOutputs;
    for (int64_t row = rows_.first; row < rows_.end; ++row) {
      const int64_t index = row - rows_.first;
      const int64_t at =
          index / tile_rows_ * kTileNumbers + index % tile_rows_ * kTileColumns;
      Wide sum = load_wide(totals + at);
      if (product_.bias != nullptr) sum = sum + load_wide(product_.bias + first);
      const int64_t to = row * outputs + first;
      if (product_.out_element == Element::float32) {
        float* const wide = static_cast<float*>(product_.out) + to;
        if (count == kPanelOutputs) store(wide, sum);
        else std::memcpy(wide, &sum, count * sizeof(float));
      } else {
        uint16_t* narrow = static_cast<uint16_t*>(product_.out) + to;
        for (int64_t i = 0; i < count; ++i) narrow[i] = float_to_bfloat(sum[i]);
      }
    }
  }

  const Product& product_;
  const Range rows_;
  const int64_t num_tiles_, tile_rows_, num_steps_;
  const bool has_rows_;
  const int64_t held_steps_;  // that are multiplied one after the other
  const int64_t others_ring_;
  float* const sums_;
  float* const totals_;
  uint16_t* const weights_;
  uint16_t* const others_;
  uint16_t* const split_rows_;
};

template <typename Word>
static void multiply_words(const Product& product, Range rows, Range panels,
                           float* scratch) {
  constexpr int64_t kMostRows = kMostTiles * kTileRows;
  const int64_t num_rows = rows.end - rows.first;
  const int64_t num_blocks = (num_rows + kMostRows - 1) / kMostRows;
  for (int64_t i = 0; i < num_blocks; ++i) {
    const Range own{rows.first + num_rows * i / num_blocks,
                    rows.first + num_rows * (i + 1) / num_blocks};
    const bool has_rows = product.is_of_same_rows && num_blocks == 1;
    Block<Word>(product, own, has_rows, scratch).run(panels);
  }
}

static void multiply(const Product& product, Range rows, Range panels, float* scratch) {
  if (product.weights.element == Element::float32) {
    multiply_words<float>(product, rows, panels, scratch);
  } else {
    multiply_words<uint32_t>(product, rows, panels, scratch);
  }
}

}  // namespace PREFOLD_ISA

namespace prefold {
const LinearKernel kAmxLinear = {"amx", prefold_linear_amx::multiply};
}
