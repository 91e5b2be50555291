// Packed linear layers: what the schedule and a kernel for one instruction set say to each
// other, and the schedule's door.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace prefold {

// Outputs of a panel, two vectors: weights lie as [panels][inputs][kPanelOutputs].
constexpr int kPanelOutputs = 16;

// Inputs whose products are summed before the sum is added to that of the steps before them
// in a chunk, and inputs of a chunk, which is added to the chunks before it. Part of the
// numerics: both are cut at multiples from the first input.
constexpr int kInputStep = 32;
constexpr int kInputChunk = 128;

// Inputs of a chunk that all of few rows are multiplied with before the next ones are: their
// weights, and those being fetched, leave room for the rows in the first cache.
constexpr int kInputSlice = 64;

// Rows and panels of a block whose inputs, weights and sums stay in the caches.
constexpr int kBlockRows = 240;
constexpr int kBlockPanels = 16;

// Numbers of rows that stay in the second cache while panel after panel is read.
constexpr int64_t kFewNumbers = 64 << 10;

// From one row's inputs of a chunk to the next row's where a kernel copies them; a power of
// two would put all into a few cache sets.
constexpr int kCopyStride = kInputChunk + 16;

// float32, or bfloat16 where number j and number 8 + j of a panel's 16 lie side by side.
enum class Element { float32, bfloat16 };

inline int64_t panels_of(int64_t outputs) {
  return (outputs + kPanelOutputs - 1) / kPanelOutputs;
}

struct Weights {
  const void* panels;
  Element element;
  int64_t outputs, inputs;
};

// What is computed: out = rows x weights^T + bias.
struct Product {
  Weights weights;
  const float* rows;  // [rows][inputs] without gaps
  const float* bias;  // a number for each output of all panels, or null for none
  void* out;          // [rows][outputs] without gaps
  Element out_element;
  // Whether the same thread's last product, with this scratch memory, was of the same rows.
  bool is_of_same_rows = false;
};

struct Range {
  int64_t first, end;
};

struct LinearKernel {
  const char* name;
  // Computes some panels of some rows. `scratch` holds kLinearScratchNumbers.
  void (*multiply)(const Product&, Range rows, Range panels, float* scratch);
};

// Sums of a block, those of a chunk of two panels, its weights as float32, and its inputs.
constexpr int64_t kSumNumbers = int64_t(kBlockRows) * kBlockPanels * kPanelOutputs;
constexpr int64_t kTotalNumbers = int64_t(kBlockRows) * 2 * kPanelOutputs;
constexpr int64_t kWidenedNumbers = 2 * kInputChunk * kPanelOutputs;
constexpr int64_t kCopiedNumbers = int64_t(kBlockRows) * kCopyStride;
// Memory of one thread: that, or what a kernel that multiplies matrices has instead.
constexpr int64_t kLinearScratchNumbers = 300 << 10;
static_assert(kSumNumbers + kTotalNumbers + kWidenedNumbers + kCopiedNumbers <=
                  kLinearScratchNumbers,
              "scratch memory holds a block");
static_assert(kLinearScratchNumbers % kPanelOutputs == 0, "each thread's is aligned");

extern const LinearKernel kPortableLinear;
extern const LinearKernel kAvx2Linear;
extern const LinearKernel kAvx512Linear;
extern const LinearKernel kAmxLinear;

// A matrix of weights where it comes from: number (output, input) stands at
// output * output_stride + input * input_stride.
struct Matrix {
  const void* data;
  int64_t output_stride, input_stride;
};

// Writes all panels; outputs that fill up the last one are zeros.
void pack(const Matrix& from, const Weights& shape, void* panels, int num_threads);

// Writes the matrix again, [outputs][inputs] without gaps.
void unpack(const Weights& from, void* to, int num_threads);

// Writes the weights of some outputs, [ids][inputs] without gaps.
void look_up(const Weights& from, const int64_t* ids, int64_t num_ids, void* to,
             int num_threads);

// Memory that calls leave to later ones.
class LinearWorkspace {
 public:
  // One of several, which do not overlap; its numbers are of earlier calls.
  float* numbers(int buffer, int64_t count) {
    return grow(buffers_[buffer], sizes_[buffer], count);
  }
  // Every thread's own, one after the other.
  float* scratch(int num_threads) {
    return grow(scratch_, scratch_size_, num_threads * kLinearScratchNumbers);
  }

  static constexpr int kBuffers = 11;

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(float* memory) const { ::operator delete(memory, kAlignment); }
  };
  using Memory = std::unique_ptr<float, Free>;

  static float* grow(Memory& memory, int64_t& size, int64_t numbers) {
    if (size < numbers) {
      memory.reset(
          static_cast<float*>(::operator new(numbers * sizeof(float), kAlignment)));
      size = numbers;
    }
    return memory.get();
  }

  Memory buffers_[kBuffers], scratch_;
  int64_t sizes_[kBuffers] = {}, scratch_size_ = 0;
};

// Computes a product; rows that are bfloat16 are given as `narrow_rows` instead.
// Which thread computes what changes no bit.
void multiply(const LinearKernel& kernel, Product product, const uint16_t* narrow_rows,
              int64_t num_rows, int num_threads, LinearWorkspace& workspace);

}  // namespace prefold
