// Python bindings of the attention, and of everything else. Everything that comes from
// outside is checked before any memory is touched; a check that fails is a ValueError.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "finite.h"
#include "layer_module.h"
#include "linear_module.h"
#include "pool.h"
#include "tensor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace prefold {

namespace {

using Blocks = nb::ndarray<const int32_t, nb::numpy, nb::ndim<1>, nb::c_contig>;
using Counts = nb::ndarray<const int64_t, nb::numpy, nb::ndim<1>, nb::c_contig>;

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

void attend_once(Pool& pool, Step& step, const Array& query, const Array& keys,
                 const Array& values, const Output& out, int64_t key_offset,
                 int64_t value_offset, std::optional<int64_t> key_scale_offset,
                 std::optional<int64_t> value_scale_offset, double scaling,
                 std::optional<int64_t> window, std::optional<double> softcap,
                 std::optional<Array> sinks, int num_threads) {
  const AttentionSite site(
      pool, AttentionSite::shape_of(query, keys, values),
      {key_offset, value_offset, key_scale_offset, value_scale_offset},
      {scaling, window, softcap, std::move(sinks)});
  site.attend(step, query, keys, values, out, num_threads);
}

void attend_at(const AttentionSite& site, Step& step, nb::handle given_query,
               nb::handle given_keys, nb::handle given_values, nb::handle given_out,
               int num_threads) {
  const Tensor query(given_query, "query"), keys(given_keys, "keys"),
      values(given_values, "values"), out(given_out, "out");
  site.attend(step, query, keys, values, out, num_threads);
}

bool has_numbers(nb::handle given, const char* name) {
  const Tensor tensor(given, name);
  const int64_t num_rows = rows_of(tensor, name);
  const Heads heads = heads_of(tensor, name);
  bool is_finite = true;
  for (int64_t head = 0; head < tensor.shape(1); ++head) {
    for (int64_t row = 0; row < num_rows; ++row) {
      const float* from = heads.data + head * heads.head_stride + row * heads.row_stride;
      is_finite &= are_finite(from, tensor.shape(3));
    }
  }
  return is_finite;
}

bool have_numbers(nb::handle keys, nb::handle values) {
  return has_numbers(keys, "keys") && has_numbers(values, "values");
}

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
  module.def("have_numbers", &have_numbers, "keys"_a, "values"_a,
             "Whether all keys and values, [1, heads, rows, size], are finite.");
  nb::class_<Step>(module, "Step", "Which tokens of which sequences a step computes.")
      .def(nb::new_(&make_step), "blocks"_a.noconvert(), "table_lengths"_a.noconvert(),
           "starts"_a.noconvert(), "counts"_a.noconvert(), nb::kw_only(), "block_size"_a)
      .def_prop_ro("num_rows", &Step::num_rows);
  nb::class_<Pool>(module, "Pool", "Keys and values of all blocks.")
      .def(nb::init<Output, int64_t, const std::string&>(), "numbers"_a.noconvert(),
           nb::kw_only(), "block_numbers"_a, "kernel"_a)
      .def("attend", &attend_once, "step"_a, "query"_a.noconvert(), "keys"_a.noconvert(),
           "values"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(), "key_offset"_a,
           "value_offset"_a, "key_scale_offset"_a.none(), "value_scale_offset"_a.none(),
           "scaling"_a, "window"_a.none(), "softcap"_a.none(),
           "sinks"_a.noconvert().none(), "num_threads"_a);
  nb::class_<AttentionSite>(module, "AttentionSite", "One layer's attention over a pool.")
      .def(
          "__init__",
          [](AttentionSite* site, Pool& pool, int64_t heads, int64_t kv_heads,
             int64_t key_size, int64_t value_size, int64_t key_offset, int64_t value_offset,
             std::optional<int64_t> key_scale_offset,
             std::optional<int64_t> value_scale_offset, double scaling,
             std::optional<int64_t> window, std::optional<double> softcap,
             std::optional<Array> sinks) {
            new (site) AttentionSite(
                pool, {heads, kv_heads, key_size, value_size},
                {key_offset, value_offset, key_scale_offset, value_scale_offset},
                {scaling, window, softcap, std::move(sinks)});
          },
          "pool"_a, nb::kw_only(), "heads"_a, "kv_heads"_a, "key_size"_a, "value_size"_a,
          "key_offset"_a, "value_offset"_a, "key_scale_offset"_a.none(),
          "value_scale_offset"_a.none(), "scaling"_a, "window"_a.none(),
          "softcap"_a.none(), "sinks"_a.noconvert().none(), nb::keep_alive<1, 2>())
      .def("attend", &attend_at, "step"_a, "query"_a, "keys"_a, "values"_a, "out"_a,
           nb::kw_only(), "num_threads"_a);
  bind_linear(module);
  bind_layer(module);
}

}  // namespace prefold
