// The packed linear layer, compiled once for each instruction set.
//
// Equal bits for a row, whatever is computed with it: an output is summed in a lane of its
// own, over the inputs of a step in order, over the steps of a chunk in order, over the
// chunks in order, and then the bias is added. Three short sums lose less than a long one.
// Blocks and threads only choose what is computed when. Loops over blocks whose operands
// stay in the caches: Goto & van de Geijn 2008.

#include <utility>

#include "words.inl"

namespace PREFOLD_ISA {

static_assert(kPanelOutputs == kWide, "a panel is as wide as a sum");

// Rows and panels whose sums fit into registers.
#if defined(PREFOLD_AVX512)
constexpr int kGroupRows = 12, kGroupPanels = 2;
#else
constexpr int kGroupRows = 6, kGroupPanels = 1;
#endif

// Rows that one register points to: the other two are at distances that an instruction adds.
constexpr int kPointedRows = 3;

// A chunk of some panels: words of the next panel stand `stride` words further.
template <typename Word> struct Chunk {
  const Word* words;
  int64_t stride;
};

// What is fetched meanwhile, of as many panels: `step` bytes for each input.
struct Ahead {
  const char* data;
  int64_t stride, step;
};

// Sums of some panels side by side, a row each.
struct Tile {
  float* data;
  int64_t stride;
};

// A chunk of the inputs of rows, each `stride` numbers after the one before.
struct Inputs {
  const float* data;
  int64_t stride;
};

// Inputs [first, first + count) of a chunk, and whether they are its first and its last.
struct Slice {
  int64_t first, count;
  bool begins, ends;
};

// Where the sums of some rows and panels are: those of a chunk, side by side, and those of
// all chunks. With the last input the bias is added, unless it is null.
struct Sums {
  float* totals;
  Tile all;
  bool is_first;
  const float* bias;
};

// A slice of some panels, and of the rows that they are multiplied with.
template <typename Word> struct Piece {
  Inputs rows;
  Chunk<Word> chunk;
  Slice slice;
  Ahead ahead;
  Sums to;
};

// Adds a slice's products to the sums of R rows and P panels. Inlined, they would not stay in
// registers.
template <int R, int P, typename Word>
__attribute__((noinline)) static void add_products(const Piece<Word>& piece) {
  constexpr int kPointers = (R + kPointedRows - 1) / kPointedRows;
  const int64_t row_stride = piece.rows.stride;
  const float* rows[kPointers];
  for (int i = 0; i < kPointers; ++i) {
    rows[i] = piece.rows.data + i * kPointedRows * row_stride;
  }
  const Word* words = piece.chunk.words;
  const int64_t stride = piece.chunk.stride;
  const Slice slice = piece.slice;
  Ahead ahead = piece.ahead;
  const Sums to = piece.to;
  for (int64_t first = 0; first < slice.count; first += kInputStep) {
    const int64_t left = slice.count - first;
    const int64_t end = first + (left < kInputStep ? left : kInputStep);
    Wide sums[R][P];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) sums[r][p] = Wide{};
    }
    for (int64_t k = first; k < end; ++k) {
      Wide weights[P];
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) {
        __builtin_prefetch(ahead.data + p * ahead.stride);
        weights[p] = load_wide(words + p * stride);
      }
      ahead.data += ahead.step;
      words += Words<Word>::count;
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const float x = rows[r / kPointedRows][r % kPointedRows * row_stride];
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) sums[r][p] = multiply_add(x, weights[p], sums[r][p]);
      }
#pragma GCC unroll 4
      for (int i = 0; i < kPointers; ++i) ++rows[i];
    }
    // Kept in memory: registers hold one step's sums.
    const bool is_first_step = slice.begins && first == 0;
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) {
        float* total = to.totals + (r * P + p) * kPanelOutputs;
        store(total, is_first_step ? sums[r][p] : add(load_wide(total), sums[r][p]));
      }
    }
  }
  if (!slice.ends) return;
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
      float* all = to.all.data + r * to.all.stride + p * kPanelOutputs;
      Wide sum = load_wide(to.totals + (r * P + p) * kPanelOutputs);
      if (!to.is_first) sum = add(load_wide(all), sum);
      if (to.bias != nullptr) sum = add(sum, load_wide(to.bias + p * kPanelOutputs));
      store(all, sum);
    }
  }
}

template <typename Word>
using AddProducts = void (*)(const Piece<Word>&);

// For each number of rows.
template <int P, typename Word, typename Rows> struct Adding;
template <int P, typename Word, int... R>
struct Adding<P, Word, std::integer_sequence<int, R...>> {
  static constexpr AddProducts<Word> of[] = {nullptr, add_products<R + 1, P, Word>...};
};
template <int P, typename Word>
constexpr const AddProducts<Word>* kAddProducts =
    Adding<P, Word, std::make_integer_sequence<int, kGroupRows>>::of;

// One block of a product: some rows, some panels.
template <typename Word> class Block {
 public:
  Block(const Product& product, Range rows, Range panels, float* scratch)
      : product_(product),
        rows_(rows),
        panels_(panels),
        sums_(scratch),
        totals_(sums_ + kSumNumbers),
        widened_(totals_ + kTotalNumbers),
        copied_(widened_ + kWidenedNumbers),
        num_groups_((rows.end - rows.first + kGroupRows - 1) / kGroupRows),
        least_rows_((rows.end - rows.first) / num_groups_),
        more_rows_((rows.end - rows.first) % num_groups_) {}

  // Chunk after chunk of up to kBlockPanels panels, and of many rows.
  void run() const {
    for_chunks([&](int64_t input, int64_t num_inputs) {
      const Inputs from = copy_inputs(input, num_inputs);
      for_groups([&](Group group) {
        const Word* next = weights(group.first + group.count, input);
        add_group(group, {input, num_inputs, true, true}, from, next);
      });
    });
    for_groups([&](Group group) { write_out(group); });
  }

  // Panel after panel, of few rows: they stay in the caches while weights stream by.
  void run_few() const {
    for_groups([&](Group group) {
      group.slot = 0;
      for_chunks([&](int64_t input, int64_t num_inputs) {
        const Inputs from = inputs_at(input);
        const int64_t most = num_groups_ > 1 ? kInputSlice : kInputChunk;
        for (int64_t done = 0; done < num_inputs; done += most) {
          const int64_t left = num_inputs - done;
          const bool is_last = left <= most;
          const Slice slice{input + done, is_last ? left : most, done == 0, is_last};
          const int64_t end = slice.first + slice.count;
          const Word* next = end == product_.weights.inputs
                                 ? weights(group.first + group.count, 0)
                                 : weights(group.first, end);
          add_group(group, slice, {from.data + done, from.stride}, next);
        }
      });
      write_out(group);
    });
  }

 private:
  static constexpr int64_t kWords = Words<Word>::count;
  static constexpr int64_t kWidenedPanel = kInputChunk * kPanelOutputs;

  // Panels that are computed together, and the first one's place among the block's sums.
  struct Group {
    int64_t first, count, slot;
  };

  template <typename Work> void for_groups(Work work) const {
    for (int64_t panel = panels_.first; panel < panels_.end;) {
      const int64_t left = panels_.end - panel;
      int64_t count = left < kGroupPanels ? left : kGroupPanels;
      if (is_direct(panel) != is_direct(panel + count - 1)) count = 1;
      work(Group{panel, count, panel - panels_.first});
      panel += count;
    }
  }

  // Calls work(first input, number of inputs).
  template <typename Work> void for_chunks(Work work) const {
    const int64_t inputs = product_.weights.inputs;
    for (int64_t input = 0; input < inputs; input += kInputChunk) {
      work(input, inputs - input < kInputChunk ? inputs - input : kInputChunk);
    }
  }

  Inputs inputs_at(int64_t input) const {
    const int64_t stride = product_.weights.inputs;
    return {product_.rows + rows_.first * stride + input, stride};
  }

  // Of many rows, which would push each other out of a cache at some distances.
  Inputs copy_inputs(int64_t input, int64_t num_inputs) const {
    const Inputs from = inputs_at(input);
    for (int64_t row = 0; row < rows_.end - rows_.first; ++row) {
      std::memcpy(copied_ + row * kCopyStride, from.data + row * from.stride,
                  num_inputs * sizeof(float));
    }
    return {copied_, kCopyStride};
  }

  const Word* weights(int64_t panel, int64_t input) const {
    const Word* all = static_cast<const Word*>(product_.weights.panels);
    return all + (panel * product_.weights.inputs + input) * kWords;
  }

  // Whether sums can be made where the result is to be.
  bool is_direct(int64_t panel) const {
    return product_.out_element == Element::float32 &&
           (panel + 1) * kPanelOutputs <= product_.weights.outputs;
  }

  Tile tile(Group group) const {
    if (is_direct(group.first)) {
      const int64_t stride = product_.weights.outputs;
      return {static_cast<float*>(product_.out) + rows_.first * stride +
                  group.first * kPanelOutputs,
              stride};
    }
    return {sums_ + group.slot * kPanelOutputs, kBlockPanels * kPanelOutputs};
  }

  // Adds a slice's products to some panels' sums, and fetches the words that come next.
  void add_group(Group group, Slice slice, Inputs from, const Word* next) const {
    const Chunk<Word> own{weights(group.first, slice.first),
                          kWords * product_.weights.inputs};
    if constexpr (kWords != kPanelOutputs) {
      if (num_groups_ > 1) {
        for (int64_t i = 0; i < group.count; ++i) {
          widen(own.words + i * own.stride, slice.count, widened_ + i * kWidenedPanel);
        }
        add_rows(group, Chunk<float>{widened_, kWidenedPanel}, slice, from, next);
        return;
      }
    }
    add_rows(group, own, slice, from, next);
  }

  static void widen(const Word* from, int64_t num_inputs, float* to) {
    for (int64_t k = 0; k < num_inputs; ++k) {
      store(to + k * kPanelOutputs, load_wide(from + k * kWords));
    }
  }

  template <typename Held>
  void add_rows(Group group, Chunk<Held> held, Slice slice, Inputs from,
                const Word* next) const {
    const bool is_first = slice.first < kInputChunk;
    const bool is_last = slice.first + slice.count == product_.weights.inputs;
    // Totals that are complete in this call need no place of each row's own.
    const int64_t own_totals = slice.begins && slice.ends ? 0 : group.count * kPanelOutputs;
    const float* bias = product_.bias;
    bias = is_last && bias != nullptr ? bias + group.first * kPanelOutputs : nullptr;
    const Tile own = tile(group);
    const AddProducts<Held>* add = kAddProducts<1, Held>;
    if constexpr (kGroupPanels > 1) {
      if (group.count > 1) add = kAddProducts<kGroupPanels, Held>;
    }
    // Each group of rows fetches its share of what comes next.
    constexpr int64_t kBytes = kWords * sizeof(Word);
    Piece<Held> piece{from,
                      held,
                      slice,
                      {reinterpret_cast<const char*>(next),
                       kBytes * product_.weights.inputs, kBytes / num_groups_},
                      {totals_, own, is_first, bias}};
    for (int64_t i = 0; i < num_groups_; ++i) {
      const int64_t count = least_rows_ + (i < more_rows_ ? 1 : 0);
      add[count](piece);
      piece.rows.data += count * from.stride;
      piece.ahead.data += piece.ahead.step * slice.count;
      piece.to.totals += count * own_totals;
      piece.to.all.data += count * own.stride;
    }
  }

  // Writes the sums of a group that were not made where they are to be.
  void write_out(Group group) const {
    if (is_direct(group.first)) return;
    const int64_t outputs = product_.weights.outputs;
    const int64_t first = group.first * kPanelOutputs, left = outputs - first;
    const int64_t most = group.count * kPanelOutputs, count = left < most ? left : most;
    const Tile own = tile(group);
    for (int64_t row = rows_.first; row < rows_.end; ++row) {
      const float* from = own.data + (row - rows_.first) * own.stride;
      const int64_t at = row * outputs + first;
      if (product_.out_element == Element::float32) {
        std::memcpy(static_cast<float*>(product_.out) + at, from, count * sizeof(float));
      } else {
        uint16_t* to = static_cast<uint16_t*>(product_.out) + at;
        for (int64_t i = 0; i < count; ++i) to[i] = float_to_bfloat(from[i]);
      }
    }
  }

  const Product& product_;
  const Range rows_, panels_;
  float* const sums_;
  float* const totals_;
  float* const widened_;
  float* const copied_;
  // Groups of rows, each of which has so many; the first ones have one more.
  const int64_t num_groups_, least_rows_, more_rows_;
};

template <typename Word>
static void multiply_words(const Product& product, Range rows, Range panels,
                           float* scratch) {
  const int64_t num_rows = rows.end - rows.first;
  const int64_t num_blocks = (num_rows + kBlockRows - 1) / kBlockRows;
  int64_t row = rows.first;
  for (int64_t i = 0; i < num_blocks; ++i) {
    const int64_t end_row = rows.first + num_rows * (i + 1) / num_blocks;
    if ((end_row - row) * product.weights.inputs <= kFewNumbers) {
      Block<Word>(product, {row, end_row}, panels, scratch).run_few();
    } else {
      for (int64_t panel = panels.first; panel < panels.end; panel += kBlockPanels) {
        const int64_t end =
            panel + kBlockPanels < panels.end ? panel + kBlockPanels : panels.end;
        Block<Word>(product, {row, end_row}, {panel, end}, scratch).run();
      }
    }
    row = end_row;
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
