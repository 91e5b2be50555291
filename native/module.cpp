// Python bindings. Everything that comes from outside is checked here, before any memory
// is touched; a check that fails is a ValueError.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <string>

#include "attention.h"
#include "instructions.h"
#include "layer_module.h"
#include "linear_module.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace prefold {

namespace {

using Array = nb::ndarray<nb::ro>;
using Output = nb::ndarray<>;
using Blocks = nb::ndarray<const int32_t, nb::numpy, nb::ndim<1>, nb::c_contig>;
using Counts = nb::ndarray<const int64_t, nb::numpy, nb::ndim<1>, nb::c_contig>;

// Positions, sizes and offsets stay far from where their products would overflow.
constexpr int64_t kLimit = int64_t(1) << 31;
constexpr int kMostThreads = 1024;

void require(bool holds, const std::string& what) {
  if (!holds) throw nb::value_error(what.c_str());
}

template <typename Any>
void require_cpu(const Any& array, const std::string& name) {
  require(array.device_type() == nb::device::cpu::value, name + " must be on the CPU");
}

template <typename Any>
void require_float32(const Any& array, const std::string& name) {
  require_cpu(array, name);
  require(array.dtype() == nb::dtype<float>(), name + " must be float32");
}

template <typename Any>
void require_shape(const Any& array, const std::vector<int64_t>& shape,
                   const std::string& name) {
  bool is_equal = array.ndim() == shape.size();
  for (size_t i = 0; is_equal && i < shape.size(); ++i) {
    is_equal = int64_t(array.shape(i)) == shape[i];
  }
  if (is_equal) return;
  std::string wanted;
  for (const int64_t size : shape) wanted += " " + std::to_string(size);
  throw nb::value_error((name + " must have the shape" + wanted).c_str());
}

template <typename Any>
void require_no_gaps(const Any& array, const std::string& name) {
  int64_t expected = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    require(array.shape(i) <= 1 || array.stride(i) == expected,
            name + " must have no gaps");
    expected *= int64_t(array.shape(i));
  }
}

Heads heads_of(const Array& array, const std::string& name) {
  require(array.shape(3) <= 1 || array.stride(3) == 1,
          name + " must have no gaps in its last axis");
  return {static_cast<const float*>(array.data()), array.stride(1), array.stride(2)};
}

constexpr const Kernel* kKernels[] = {
#if defined(PREFOLD_HAS_X86)
    &kAvx512Kernel,
    &kAvx2Kernel,
#endif
    &kPortableKernel,
};

Number number_of(const Output& array) {
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

Step make_step(const Blocks& blocks, const Counts& table_lengths, const Counts& starts,
               const Counts& counts, int64_t block_size) {
  const size_t num = table_lengths.shape(0);
  require(starts.shape(0) == num && counts.shape(0) == num,
          "there must be as many starts and counts as tables");
  require(block_size >= 1 && block_size < kLimit, "block_size must be at least 1");
  int64_t num_blocks = 0, num_rows = 0;
  for (size_t i = 0; i < num; ++i) {
    const int64_t length = table_lengths(i), start = starts(i), count = counts(i);
    require(length >= 1 && length < kLimit, "a block table must have at least one block");
    require(start >= 0 && start < kLimit, "a start must not be negative");
    require(count >= 1 && count < kLimit, "a count must be at least 1");
    require(start + count <= length * block_size, "a block table does not cover its slice");
    num_blocks += length;
    num_rows += count;
    require(num_blocks < kLimit && num_rows < kLimit, "there are too many blocks or rows");
  }
  require(num_blocks == int64_t(blocks.shape(0)), "table lengths and blocks disagree");
  for (int64_t i = 0; i < num_blocks; ++i) {
    require(blocks(i) >= 0, "a block id must not be negative");
  }
  const auto copy = [&](const Counts& from) {
    return std::vector<int64_t>(from.data(), from.data() + num);
  };
  return Step(std::vector<int32_t>(blocks.data(), blocks.data() + num_blocks),
              copy(table_lengths), copy(starts), copy(counts), int(block_size));
}

class Pool {
 public:
  Pool(Output numbers, int64_t block_numbers, const std::string& kernel)
      : numbers_(std::move(numbers)), block_numbers_(block_numbers) {
    require_cpu(numbers_, "the pool");
    require(numbers_.ndim() == 1, "the pool must have one axis");
    require_no_gaps(numbers_, "the pool");
    number_ = number_of(numbers_);
    require(block_numbers >= 1 && block_numbers < kLimit,
            "block_numbers must be at least 1");
    num_blocks_ = int64_t(numbers_.shape(0)) / block_numbers;
    kernel_ = &choose(kernel, kKernels);
  }

  void attend(Step& step, const Array& query, const Array& keys, const Array& values,
              const Output& out, int64_t key_offset, int64_t value_offset,
              std::optional<int64_t> key_scale_offset,
              std::optional<int64_t> value_scale_offset, double scaling,
              std::optional<int64_t> window, std::optional<double> softcap,
              const std::optional<Array>& sinks, int num_threads) {
    Layer layer = read_layer(query, keys, values, step);
    const int64_t num_rows = int64_t(query.shape(2));
    require(num_rows >= step.num_rows(), "there are fewer rows than tokens in the slices");
    require_float32(out, "out");
    require_shape(out, {1, num_rows, layer.heads, layer.value_size}, "out");
    require_no_gaps(out, "out");
    place(layer, key_offset, value_offset);
    place_scales(layer, key_scale_offset, value_scale_offset);
    Inputs inputs{heads_of(query, "query"), heads_of(keys, "keys"),
                  heads_of(values, "values"), nullptr,
                  read_options(scaling, window, softcap)};
    if (sinks.has_value()) {
      require_float32(*sinks, "sinks");
      require_shape(*sinks, {layer.heads}, "sinks");
      require_no_gaps(*sinks, "sinks");
      inputs.sinks = static_cast<const float*>(sinks->data());
    }
    require(num_threads >= 1 && num_threads <= kMostThreads,
            "num_threads must be from 1 to 1024");
    const Result result{static_cast<float*>(out.data()), num_rows};
    nb::gil_scoped_release unlocked;
    prefold::attend(*kernel_, step, layer, inputs, result, num_threads, workspace_);
  }

 private:
  Layer read_layer(const Array& query, const Array& keys, const Array& values,
                   const Step& step) const {
    const std::pair<const Array*, const char*> named[] = {
        {&query, "query"}, {&keys, "keys"}, {&values, "values"}};
    for (const auto& [array, name] : named) {
      require_float32(*array, name);
      require(array->ndim() == 4 && array->shape(0) == 1,
              std::string(name) + " must have the shape 1 heads rows size");
      const int64_t size = int64_t(array->shape(3));
      require(size >= 1 && size <= kMaxSize,
              std::string(name) + " must have a size from 1 to 256");
      require(array->shape(1) >= 1 && array->shape(1) < size_t(kLimit),
              std::string(name) + " must have heads");
    }
    const int64_t num_rows = int64_t(query.shape(2));
    require(num_rows < kLimit, "there are too many rows");
    const int64_t heads = int64_t(query.shape(1)), kv_heads = int64_t(keys.shape(1));
    require(heads % kv_heads == 0, "heads must be a multiple of the key heads");
    require_shape(keys, {1, kv_heads, num_rows, int64_t(query.shape(3))}, "keys");
    require_shape(values, {1, kv_heads, num_rows, int64_t(values.shape(3))}, "values");
    require(step.largest_block() < num_blocks_, "a block id is outside the pool");
    return {numbers_.data(),
            number_,
            block_numbers_,
            0,
            0,
            0,
            0,
            step.block_size(),
            int32_t(heads),
            int32_t(kv_heads),
            int32_t(query.shape(3)),
            int32_t(values.shape(3))};
  }

  static void place(Layer& layer, int64_t key_offset, int64_t value_offset) {
    const int64_t area = int64_t(layer.kv_heads) * layer.block_size;
    const auto fits = [&](int64_t offset, int64_t size) {
      return offset >= 0 && area <= layer.block_numbers &&
             area * size <= layer.block_numbers - offset;
    };
    require(fits(key_offset, layer.key_size), "the keys do not fit into a block");
    require(fits(value_offset, layer.value_size), "the values do not fit into a block");
    layer.key_offset = key_offset;
    layer.value_offset = value_offset;
  }

  static void place_scales(Layer& layer, std::optional<int64_t> key_offset,
                           std::optional<int64_t> value_offset) {
    const bool has_scales = layer.number == Number::int8;
    require(key_offset.has_value() == has_scales && value_offset.has_value() == has_scales,
            "scales belong to a pool of int8, which cannot do without");
    if (!has_scales) return;
    // A number takes one byte. That the area fits was seen when the keys were placed.
    const int64_t area =
        int64_t(layer.kv_heads) * layer.block_size * int64_t(sizeof(float));
    const auto fits = [&](int64_t offset) {
      return offset >= 0 && area <= layer.block_numbers - offset;
    };
    require(fits(*key_offset) && fits(*value_offset), "the scales do not fit into a block");
    layer.key_scale_offset = *key_offset;
    layer.value_scale_offset = *value_offset;
  }

  static Options read_options(double scaling, std::optional<int64_t> window,
                              std::optional<double> softcap) {
    constexpr double kLog2E = 1.4426950408889634;
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

  Output numbers_;  // keeps the memory
  int64_t block_numbers_, num_blocks_ = 0;
  Number number_ = Number::float32;
  const Kernel* kernel_ = nullptr;
  Workspace workspace_;
};

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const Kernel* kernel : kKernels) {
    if (runs_here(kernel->name)) names.emplace_back(kernel->name);
  }
  return names;
}

}  // namespace

NB_MODULE(_kernels, module) {
  module.doc() = "Kernels for the CPU.";
  // A process that ends with a pool still in use has nothing to report.
  nb::set_leak_warnings(false);
  module.attr("PARTITION") = kPartition;
  module.attr("MAX_SIZE") = kMaxSize;
  module.def("kernel_names", &kernel_names,
             "Names of the kernels that run on this machine, the fastest first.");
  nb::class_<Step>(module, "Step", "Which tokens of which sequences a step computes.")
      .def(nb::new_(&make_step), "blocks"_a.noconvert(), "table_lengths"_a.noconvert(),
           "starts"_a.noconvert(), "counts"_a.noconvert(), nb::kw_only(), "block_size"_a)
      .def_prop_ro("num_rows", &Step::num_rows);
  nb::class_<Pool>(module, "Pool", "Keys and values of all blocks.")
      .def(nb::init<Output, int64_t, const std::string&>(), "numbers"_a.noconvert(),
           nb::kw_only(), "block_numbers"_a, "kernel"_a)
      .def("attend", &Pool::attend, "step"_a, "query"_a.noconvert(), "keys"_a.noconvert(),
           "values"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(), "key_offset"_a,
           "value_offset"_a, "key_scale_offset"_a.none(), "value_scale_offset"_a.none(),
           "scaling"_a, "window"_a.none(), "softcap"_a.none(),
           "sinks"_a.noconvert().none(), "num_threads"_a);
  bind_linear(module);
  bind_layer(module);
}

}  // namespace prefold
