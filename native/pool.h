// The pool of keys and values as Python holds it, and one layer's place in it. Everything
// that comes from outside is checked here, before any memory is touched.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "attention.h"
#include "checks.h"
#include "instructions.h"

namespace prefold {

constexpr const Kernel* kKernels[] = {
#if defined(PREFOLD_HAS_AMX)
    &kAmxKernel,
#endif
#if defined(PREFOLD_HAS_X86)
    &kAvx512Kernel,
    &kAvx2Kernel,
#endif
    &kPortableKernel,
};

template <typename Any> void require_float32(const Any& array, const char* name) {
  require(array.device_type() == nb::device::cpu::value, name, " must be on the CPU");
  require(array.dtype() == nb::dtype<float>(), name, " must be float32");
}

template <typename Any>
void require_shape(const Any& array, std::initializer_list<int64_t> shape,
                   const char* name) {
  bool is_equal = array.ndim() == shape.size();
  size_t axis = 0;
  for (const int64_t size : shape) {
    is_equal = is_equal && int64_t(array.shape(axis++)) == size;
  }
  if (is_equal) return;
  std::string wanted;
  for (const int64_t size : shape) wanted += " " + std::to_string(size);
  throw nb::value_error((std::string(name) + " must have the shape" + wanted).c_str());
}

class Pool {
 public:
  Pool(Output numbers, int64_t block_numbers, const std::string& kernel)
      : numbers_(std::move(numbers)), block_numbers_(block_numbers) {
    require(numbers_.device_type() == nb::device::cpu::value,
            "the pool must be on the CPU");
    require(numbers_.ndim() == 1, "the pool must have one axis");
    require_no_gaps(numbers_, "the pool");
    number_ = number_of(numbers_);
    require(block_numbers >= 1 && block_numbers < kLimit,
            "block_numbers must be at least 1");
    num_blocks_ = int64_t(numbers_.shape(0)) / block_numbers;
    kernel_ = &choose(kernel, kKernels);
  }

  void* data() const { return numbers_.data(); }
  Number number() const { return number_; }
  int64_t block_numbers() const { return block_numbers_; }
  int64_t num_blocks() const { return num_blocks_; }
  const Kernel& kernel() const { return *kernel_; }
  // Used by one step at a time.
  Workspace& workspace() { return workspace_; }

 private:
  static Number number_of(const Output& array) {
    const nb::dlpack::dtype dtype = array.dtype();
    require(dtype.lanes == 1, "the pool must hold plain numbers");
    if (dtype == nb::dtype<float>()) return Number::float32;
    if (dtype == nb::dtype<int8_t>()) return Number::int8;
    if (dtype.bits == 16 && dtype.code == uint8_t(nb::dlpack::dtype_code::Bfloat)) {
      return Number::bfloat16;
    }
    require(dtype.bits == 16 && dtype.code == uint8_t(nb::dlpack::dtype_code::Float),
            "the pool must be float32, bfloat16, float16 or int8");
    return Number::float16;
  }

  Output numbers_;  // keeps the memory
  int64_t block_numbers_, num_blocks_ = 0;
  Number number_ = Number::float32;
  const Kernel* kernel_ = nullptr;
  Workspace workspace_;
};

// Heads of a layer, and numbers in a head's row.
struct HeadShape {
  int64_t heads, kv_heads, key_size, value_size;
};

// Where a layer's numbers are in a block; scales belong to a pool of int8.
struct Offsets {
  int64_t key, value;
  std::optional<int64_t> key_scale, value_scale;
};

// What a layer's attention is like.
struct Manner {
  double scaling;
  std::optional<int64_t> window;
  std::optional<double> softcap;
  std::optional<Array> sinks;
};

// Rows of heads, [1, heads, rows, size].
template <typename Any> int64_t rows_of(const Any& array, const char* name) {
  require_float32(array, name);
  require(array.ndim() == 4 && array.shape(0) == 1, name,
          " must have the shape 1 heads rows size");
  const int64_t num_rows = int64_t(array.shape(2));
  require(num_rows < kLimit, "there are too many rows");
  return num_rows;
}

template <typename Any> Heads heads_of(const Any& array, const char* name) {
  require(array.shape(3) <= 1 || array.stride(3) == 1, name,
          " must have no gaps in its last axis");
  return {static_cast<const float*>(array.data()), array.stride(1), array.stride(2)};
}

// One layer's attention over a pool.
class AttentionSite {
 public:
  AttentionSite(Pool& pool, const HeadShape& shape, const Offsets& offsets, Manner manner)
      : pool_(pool),
        options_(read_options(manner)),
        sinks_(std::move(manner.sinks)) {
    require(shape.heads >= 1 && shape.heads < kLimit, "query must have heads");
    require(shape.kv_heads >= 1 && shape.kv_heads < kLimit, "keys must have heads");
    require(shape.heads % shape.kv_heads == 0,
            "heads must be a multiple of the key heads");
    require_size(shape.key_size, "keys");
    require_size(shape.value_size, "values");
    layer_ = {pool.data(), pool.number(), pool.block_numbers(), 0, 0, 0, 0, 0,
              int32_t(shape.heads), int32_t(shape.kv_heads), int32_t(shape.key_size),
              int32_t(shape.value_size)};
    place(offsets);
    if (!sinks_.has_value()) return;
    require_float32(*sinks_, "sinks");
    require_shape(*sinks_, {shape.heads}, "sinks");
    require_no_gaps(*sinks_, "sinks");
  }

  const Layer& layer() const { return layer_; }

  // Checks the blocks of a step. A layer may have been placed for blocks of another size.
  void require_step(const Step& step) const {
    require(step.largest_block() < pool_.num_blocks(), "a block id is outside the pool");
    require_fits(step.block_size());
  }

  // Attends; everything has been checked.
  void run(Step& step, const Heads& query, const Heads& keys, const Heads& values,
           const Result& result, int num_threads) const {
    Layer layer = layer_;
    layer.block_size = step.block_size();
    const float* sinks =
        sinks_.has_value() ? static_cast<const float*>(sinks_->data()) : nullptr;
    prefold::attend(pool_.kernel(), step, layer, {query, keys, values, sinks, options_},
                    result, num_threads, pool_.workspace());
  }

  // Of tensors [1, heads, rows, size]; `out` is [1, rows, heads, size].
  template <typename Any, typename Out>
  void attend(Step& step, const Any& query, const Any& keys, const Any& values,
              const Out& out, int num_threads) const {
    const int64_t num_rows = rows_of(query, "query");
    require_step(step);
    require_shape(query, {1, layer_.heads, num_rows, layer_.key_size}, "query");
    require_shape(keys, {1, layer_.kv_heads, num_rows, layer_.key_size}, "keys");
    require_shape(values, {1, layer_.kv_heads, num_rows, layer_.value_size}, "values");
    require(num_rows >= step.num_rows(), "there are fewer rows than tokens in the slices");
    require_float32(out, "out");
    require_shape(out, {1, num_rows, layer_.heads, layer_.value_size}, "out");
    require_no_gaps(out, "out");
    require_threads(num_threads);
    const Heads heads[] = {heads_of(query, "query"), heads_of(keys, "keys"),
                           heads_of(values, "values")};
    const Result result{static_cast<float*>(out.data()), num_rows};
    const nb::gil_scoped_release unlocked;
    run(step, heads[0], heads[1], heads[2], result, num_threads);
  }

  // The shape of tensors that a layer without a place is to attend to.
  template <typename Any>
  static HeadShape shape_of(const Any& query, const Any& keys, const Any& values) {
    for (const auto& [array, name] :
         {std::pair(&query, "query"), std::pair(&keys, "keys"), std::pair(&values, "values")}) {
      rows_of(*array, name);
      require_size(int64_t(array->shape(3)), name);
      require(array->shape(1) >= 1 && array->shape(1) < size_t(kLimit), name,
              " must have heads");
    }
    return {int64_t(query.shape(1)), int64_t(keys.shape(1)), int64_t(query.shape(3)),
            int64_t(values.shape(3))};
  }

 private:
  static void require_size(int64_t size, const char* name) {
    require(size >= 1 && size <= kMaxSize, name, " must have a size from 1 to 256");
  }

  static Options read_options(const Manner& manner) {
    constexpr double kLog2E = 1.4426950408889634;
    const auto& [scaling, window, softcap, sinks] = manner;
    require(std::isfinite(scaling), "scaling must be finite");
    require(!window.has_value() || (*window >= 1 && *window < (int64_t(1) << 62)),
            "window must be at least 1");
    require(!softcap.has_value() || (std::isfinite(*softcap) && *softcap > 0),
            "softcap must be above 0");
    const double factor = softcap.has_value() ? 1 / *softcap : kLog2E;
    // A longer window hides nothing, and sums with it must not overflow.
    const int64_t limited = window.has_value() && *window < kLimit * 2 ? *window : 0;
    return {float(scaling * factor), softcap.has_value() ? float(*softcap * kLog2E) : 0.0f,
            limited};
  }

  void place(const Offsets& offsets) {
    layer_.key_offset = offsets.key;
    layer_.value_offset = offsets.value;
    const bool has_scales = layer_.number == Number::int8;
    require(offsets.key_scale.has_value() == has_scales &&
                offsets.value_scale.has_value() == has_scales,
            "scales belong to a pool of int8, which cannot do without");
    layer_.key_scale_offset = offsets.key_scale.value_or(0);
    layer_.value_scale_offset = offsets.value_scale.value_or(0);
  }

  void require_fits(int64_t block_size) const {
    const int64_t area = int64_t(layer_.kv_heads) * block_size;
    const auto fits = [&](int64_t offset, int64_t size) {
      return offset >= 0 && area <= layer_.block_numbers &&
             area * size <= layer_.block_numbers - offset;
    };
    require(fits(layer_.key_offset, layer_.key_size), "the keys do not fit into a block");
    require(fits(layer_.value_offset, layer_.value_size),
            "the values do not fit into a block");
    if (layer_.number != Number::int8) return;
    // A number takes one byte.
    require(fits(layer_.key_scale_offset, sizeof(float)) &&
                fits(layer_.value_scale_offset, sizeof(float)),
            "the scales do not fit into a block");
  }

  Pool& pool_;
  Layer layer_{};
  Options options_;
  std::optional<Array> sinks_;  // keeps the memory
};

}  // namespace prefold
