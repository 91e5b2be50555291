// The packed linear layer, compiled once for each instruction set.
//
// Equal bits for a row, whatever is computed with it: an output is summed in a lane of its
// own, over the inputs of a step in order, over the steps of a chunk in order, over the
// chunks in order, and then the bias is added. Three short sums lose less than a long one. Blocks and threads only choose what is computed when. Loops over blocks whose
// operands stay in the caches: Goto & van de Geijn 2008.

#include "linear.h"
#include "simd.h"

namespace PREFOLD_ISA {

using namespace prefold;

static_assert(kPanelOutputs == 2 * kLanes, "a panel is two vectors");

constexpr int kGroupRows = 6;  // rows whose sums fit into registers, two vectors each

// Numbers of rows that stay in the second cache while panel after panel is read.
constexpr int64_t kFewNumbers = 64 << 10;

struct Pair {
  Floats low, high;
};

PREFOLD_INLINE Pair load_pair(const float* from) { return {load(from), load(from + kLanes)}; }

// Two bfloat16 in 32 bits, the first in the lower half.
PREFOLD_INLINE Pair load_pair(const uint32_t* from) {
  Ints bits;
  std::memcpy(&bits, from, sizeof bits);
  return {as_floats(bits << 16), as_floats(bits & int32_t(0xffff0000u))};
}

// Words of a panel for one input.
template <typename Word> struct Words {
  static constexpr int count = kPanelOutputs;
};
template <> struct Words<uint32_t> {
  static constexpr int count = kPanelOutputs / 2;
};

// What is fetched while a chunk is computed: `step` bytes for each of its inputs.
struct Ahead {
  const char* data;
  int64_t step;
};

// Sums of one panel, a row each.
struct Tile {
  float* data;
  int64_t stride;
};

// Adds a chunk's products to the sums of R rows. Inlined, they would not stay in registers.
template <int R, typename Word>
__attribute__((noinline)) static void add_products(const float* rows, int64_t row_stride,
                                                   const Word* weights, int64_t num_inputs,
                                                   Ahead ahead, Tile tile, bool is_first,
                                                   const float* bias) {
  // Kept in memory: registers hold one step's sums.
  Floats totals[R][2];
  for (int64_t first = 0; first < num_inputs; first += kInputStep) {
    const int64_t left = num_inputs - first;
    const int64_t end = first + (left < kInputStep ? left : kInputStep);
    Floats sums[R][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = spread(0.0f);
    for (int64_t k = first; k < end; ++k) {
      __builtin_prefetch(ahead.data);
      ahead.data += ahead.step;
      const Pair pair = load_pair(weights);
      weights += Words<Word>::count;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Floats x = spread(rows[r * row_stride + k]);
        sums[r][0] = multiply_add(x, pair.low, sums[r][0]);
        sums[r][1] = multiply_add(x, pair.high, sums[r][1]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      totals[r][0] = first == 0 ? sums[r][0] : totals[r][0] + sums[r][0];
      totals[r][1] = first == 0 ? sums[r][1] : totals[r][1] + sums[r][1];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    float* to = tile.data + r * tile.stride;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      Floats sum = totals[r][half];
      if (!is_first) sum = load(to + half * kLanes) + sum;
      if (bias != nullptr) sum = sum + load(bias + half * kLanes);
      store(to + half * kLanes, sum);
    }
  }
}

template <typename Word>
using AddProducts = void (*)(const float*, int64_t, const Word*, int64_t, Ahead, Tile, bool,
                             const float*);

template <typename Word>
static const AddProducts<Word> kAddProducts[] = {
    nullptr,
    add_products<1, Word>,
    add_products<2, Word>,
    add_products<3, Word>,
    add_products<4, Word>,
    add_products<5, Word>,
    add_products<6, Word>,
};

// One block of a product: some rows, some panels.
template <typename Word> class Block {
 public:
  Block(const Product& product, Range rows, Range panels, float* scratch)
      : product_(product),
        rows_(rows),
        panels_(panels),
        sums_(scratch),
        widened_(scratch + kBlockRows * kBlockPanels * kPanelOutputs),
        num_groups_((rows.end - rows.first + kGroupRows - 1) / kGroupRows) {}

  void run() const {
    const int64_t inputs = product_.weights.inputs;
    for (int64_t input = 0; input < inputs; input += kInputChunk) {
      const int64_t num_inputs = inputs - input < kInputChunk ? inputs - input : kInputChunk;
      for (int64_t panel = panels_.first; panel < panels_.end; ++panel) {
        add_panel(panel, input, num_inputs);
      }
    }
    for (int64_t panel = panels_.first; panel < panels_.end; ++panel) {
      if (!is_direct(panel)) write_out(panel);
    }
  }

 private:
  static constexpr int64_t kWords = Words<Word>::count;

  const Word* weights(int64_t panel, int64_t input) const {
    const Word* all = static_cast<const Word*>(product_.weights.panels);
    return all + (panel * product_.weights.inputs + input) * kWords;
  }

  // Whether sums can be made where the result is to be.
  bool is_direct(int64_t panel) const {
    return product_.out_element == Element::float32 &&
           (panel + 1) * kPanelOutputs <= product_.weights.outputs;
  }

  Tile tile(int64_t panel) const {
    if (is_direct(panel)) {
      const int64_t stride = product_.weights.outputs;
      return {static_cast<float*>(product_.out) + rows_.first * stride +
                  panel * kPanelOutputs,
              stride};
    }
    const int64_t stride = (panels_.end - panels_.first) * kPanelOutputs;
    return {sums_ + (panel - panels_.first) * kPanelOutputs, stride};
  }

  void add_panel(int64_t panel, int64_t input, int64_t num_inputs) const {
    const Word* own = weights(panel, input);
    // In a block of one panel its next chunk follows, and then the next block's.
    const Word* next = panels_.end - panels_.first == 1 ? own + num_inputs * kWords
                                                        : weights(panel + 1, input);
    if constexpr (sizeof(Word) == sizeof(float) && kWords != kPanelOutputs) {
      if (num_groups_ > 1) {
        widen(own, num_inputs);
        add_rows(widened_, panel, input, num_inputs, next);
        return;
      }
    }
    add_rows(own, panel, input, num_inputs, next);
  }

  void widen(const Word* from, int64_t num_inputs) const {
    for (int64_t k = 0; k < num_inputs; ++k) {
      const Pair pair = load_pair(from + k * kWords);
      store(widened_ + k * kPanelOutputs, pair.low);
      store(widened_ + k * kPanelOutputs + kLanes, pair.high);
    }
  }

  template <typename Held>
  void add_rows(const Held* held, int64_t panel, int64_t input, int64_t num_inputs,
                const Word* next) const {
    const int64_t num_rows = rows_.end - rows_.first, inputs = product_.weights.inputs;
    const bool is_last = input + num_inputs == inputs;
    const float* bias = product_.bias;
    bias = is_last && bias != nullptr ? bias + panel * kPanelOutputs : nullptr;
    const Tile own = tile(panel);
    // Each group of rows fetches its share of what comes next.
    Ahead ahead{reinterpret_cast<const char*>(next),
                int64_t(kWords * sizeof(Word)) / num_groups_};
    int64_t row = 0;
    for (int64_t group = 0; group < num_groups_; ++group) {
      const int64_t end = num_rows * (group + 1) / num_groups_;
      kAddProducts<Held>[end - row](
          product_.rows + (rows_.first + row) * inputs + input, inputs, held, num_inputs, ahead,
          {own.data + row * own.stride, own.stride}, input == 0, bias);
      ahead.data += ahead.step * num_inputs;
      row = end;
    }
  }

  void write_out(int64_t panel) const {
    const int64_t outputs = product_.weights.outputs;
    const int64_t left = outputs - panel * kPanelOutputs;
    const int64_t count = left < kPanelOutputs ? left : kPanelOutputs;
    const Tile own = tile(panel);
    for (int64_t row = rows_.first; row < rows_.end; ++row) {
      const float* from = own.data + (row - rows_.first) * own.stride;
      const int64_t at = row * outputs + panel * kPanelOutputs;
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
  float* const widened_;
  const int64_t num_groups_;
};

template <typename Word>
static void multiply_words(const Product& product, Range rows, Range panels,
                           float* scratch) {
  const int64_t num_rows = rows.end - rows.first;
  const int64_t num_blocks = (num_rows + kBlockRows - 1) / kBlockRows;
  int64_t row = rows.first;
  for (int64_t i = 0; i < num_blocks; ++i) {
    const int64_t end_row = rows.first + num_rows * (i + 1) / num_blocks;
    // Few rows stay where they are while weights stream by; many are taken in chunks.
    const bool is_few = (end_row - row) * product.weights.inputs <= kFewNumbers;
    const int64_t step = is_few ? 1 : kBlockPanels;
    for (int64_t panel = panels.first; panel < panels.end; panel += step) {
      const int64_t end = panel + step < panels.end ? panel + step : panels.end;
      Block<Word>(product, {row, end_row}, {panel, end}, scratch).run();
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
