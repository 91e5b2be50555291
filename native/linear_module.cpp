// Everything that comes from outside is checked here, before any memory is touched; a
// check that fails is a ValueError.
#include "linear_module.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <mutex>
#include <string>

#include "activation.h"
#include "linear.h"
#include "tensor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace prefold {

namespace {

using Array = nb::ndarray<nb::ro>;
using Output = nb::ndarray<>;
using Ids = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Sizes stay far from where their products would overflow.
constexpr int64_t kLimit = int64_t(1) << 31;
constexpr int kMostThreads = 1024;

void require(bool holds, const char* what) {
  if (!holds) throw nb::value_error(what);
}

void require(bool holds, const char* name, const char* what) {
  if (!holds) throw nb::value_error((std::string(name) + what).c_str());
}

void require_threads(int num_threads) {
  require(num_threads >= 1 && num_threads <= kMostThreads,
          "num_threads must be from 1 to 1024");
}

template <typename Any> Element element_of(const Any& array, const char* name) {
  require(array.device_type() == nb::device::cpu::value, name, " must be on the CPU");
  const nb::dlpack::dtype dtype = array.dtype();
  if (dtype == nb::dtype<float>()) return Element::float32;
  const bool is_bfloat = dtype.bits == 16 && dtype.lanes == 1 &&
                         dtype.code == uint8_t(nb::dlpack::dtype_code::Bfloat);
  require(is_bfloat, name, " must be float32 or bfloat16");
  return Element::bfloat16;
}

template <typename Any> void require_no_gaps(const Any& array, const char* name) {
  if (array.size() == 0) return;
  int64_t expected = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    require(array.shape(i) <= 1 || array.stride(i) == expected, name,
            " must have no gaps");
    expected *= int64_t(array.shape(i));
  }
}

// Rows of `width` numbers, however many axes they are counted by.
template <typename Any> int64_t count_rows(const Any& array, int64_t width, const char* name) {
  require(array.ndim() >= 1 && int64_t(array.shape(array.ndim() - 1)) == width, name,
          " must have rows of another size");
  require_no_gaps(array, name);
  const int64_t rows = int64_t(array.size()) / width;
  require(rows < kLimit, name, " must have fewer rows");
  return rows;
}

bool has_avx2() {
#if defined(PREFOLD_HAS_AVX2)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

template <typename Kernel>
const Kernel& choose(const std::string& name, const Kernel* fast, const Kernel& portable) {
  if (name == portable.name) return portable;
  require(fast != nullptr && name == fast->name && has_avx2(), name.c_str(),
          " is no kernel that runs on this machine");
  return *fast;
}

#if defined(PREFOLD_HAS_AVX2)
constexpr const LinearKernel* kFastLinear = &kAvx2Linear;
constexpr const ActivationKernel* kFastActivation = &kAvx2Activation;
#else
constexpr const LinearKernel* kFastLinear = nullptr;
constexpr const ActivationKernel* kFastActivation = nullptr;
#endif

// Scratch memory of a model's layers, which run one after the other.
class SharedWorkspace {
 public:
  template <typename Work> void use(Work work) {
    const std::lock_guard<std::mutex> held(mutex_);
    work(workspace_);
  }

 private:
  std::mutex mutex_;
  LinearWorkspace workspace_;
};

class Panels {
 public:
  Panels(Output numbers, int64_t outputs, std::optional<Array> bias,
         SharedWorkspace& workspace, const std::string& kernel)
      : numbers_(std::move(numbers)),
        bias_(std::move(bias)),
        workspace_(workspace),
        kernel_(choose(kernel, kFastLinear, kPortableLinear)) {
    const Element element = element_of(numbers_, "the panels");
    require(numbers_.ndim() == 3 && numbers_.shape(2) == kPanelOutputs,
            "the panels must have the shape panels inputs 16");
    require_no_gaps(numbers_, "the panels");
    const int64_t inputs = int64_t(numbers_.shape(1));
    require(outputs >= 1 && outputs < kLimit, "outputs must be at least 1");
    require(inputs >= 1 && inputs < kLimit, "inputs must be at least 1");
    require(int64_t(numbers_.shape(0)) == panels_of(outputs),
            "there must be as many panels as outputs fill");
    weights_ = {numbers_.data(), element, outputs, inputs};
    if (bias_.has_value()) {
      require(element_of(*bias_, "the bias") == Element::float32,
              "the bias must be float32");
      require(bias_->ndim() == 1 &&
                  int64_t(bias_->shape(0)) == panels_of(outputs) * kPanelOutputs,
              "the bias must have a number for each output of the panels");
      require_no_gaps(*bias_, "the bias");
    }
  }

  void pack(const Array& weight, int num_threads) {
    require(element_of(weight, "the weight") == weights_.element,
            "the weight must have the panels' type");
    require(weight.ndim() == 2 && int64_t(weight.shape(0)) == weights_.outputs &&
                int64_t(weight.shape(1)) == weights_.inputs,
            "the weight must have the shape outputs inputs");
    require_threads(num_threads);
    const Matrix matrix{weight.data(), weight.stride(0), weight.stride(1)};
    const nb::gil_scoped_release unlocked;
    prefold::pack(matrix, weights_, numbers_.data(), num_threads);
  }

  void unpack(const Output& weight, int num_threads) const {
    require(element_of(weight, "the weight") == weights_.element,
            "the weight must have the panels' type");
    require(count_rows(weight, weights_.inputs, "the weight") == weights_.outputs,
            "the weight must have the shape outputs inputs");
    require_threads(num_threads);
    const nb::gil_scoped_release unlocked;
    prefold::unpack(weights_, weight.data(), num_threads);
  }

  void look_up(const Ids& ids, const Output& out, int num_threads) const {
    require(element_of(out, "out") == weights_.element, "out must have the panels' type");
    const int64_t count = int64_t(ids.shape(0));
    require(count_rows(out, weights_.inputs, "out") == count,
            "out must have a row for each id");
    for (int64_t i = 0; i < count; ++i) {
      require(ids(i) >= 0 && ids(i) < weights_.outputs, "an id is outside the weights");
    }
    require_threads(num_threads);
    const nb::gil_scoped_release unlocked;
    prefold::look_up(weights_, ids.data(), count, out.data(), num_threads);
  }

  void multiply(nb::handle given_rows, nb::handle given_out, int num_threads) const {
    const Tensor rows(given_rows, "the rows"), out(given_out, "out");
    const Element element = element_of(rows, "the rows");
    const int64_t num_rows = count_rows(rows, weights_.inputs, "the rows");
    require(element_of(out, "out") == element, "out must have the rows' type");
    require(count_rows(out, weights_.outputs, "out") == num_rows,
            "out must have as many rows");
    require_threads(num_threads);
    if (num_rows == 0) return;
    const bool is_narrow = element == Element::bfloat16;
    const Product product{
        weights_,
        is_narrow ? nullptr : static_cast<const float*>(rows.data()),
        bias_.has_value() ? static_cast<const float*>(bias_->data()) : nullptr,
        out.data(),
        element};
    const uint16_t* narrow =
        is_narrow ? static_cast<const uint16_t*>(rows.data()) : nullptr;
    const nb::gil_scoped_release unlocked;
    workspace_.use([&](LinearWorkspace& workspace) {
      prefold::multiply(kernel_, product, narrow, num_rows, num_threads, workspace);
    });
  }

 private:
  Output numbers_;  // keeps the memory
  std::optional<Array> bias_;
  SharedWorkspace& workspace_;
  const LinearKernel& kernel_;
  Weights weights_{};
};

class Activation {
 public:
  Activation(const std::string& function, const std::string& kernel)
      : function_(function_of(function)),
        kernel_(choose(kernel, kFastActivation, kPortableActivation)) {}

  void apply(nb::handle given_numbers, nb::handle given_out, int num_threads) const {
    const Tensor numbers(given_numbers, "the numbers"), out(given_out, "out");
    const Element element = element_of(numbers, "the numbers");
    require(element_of(out, "out") == element, "out must have the numbers' type");
    require_no_gaps(numbers, "the numbers");
    require_no_gaps(out, "out");
    require(out.size() == numbers.size(), "out must have as many numbers");
    require_threads(num_threads);
    const nb::gil_scoped_release unlocked;
    activate(kernel_, function_, element, numbers.data(), int64_t(numbers.size()),
             out.data(), num_threads);
  }

 private:
  static Function function_of(const std::string& name) {
    if (name == "silu") return Function::silu;
    if (name == "gelu") return Function::gelu;
    if (name == "gelu_tanh") return Function::gelu_tanh;
    require(name == "quick_gelu", name.c_str(), " is no activation");
    return Function::quick_gelu;
  }

  Function function_;
  const ActivationKernel& kernel_;
};

}  // namespace

void bind_linear(nb::module_& module) {
  module.attr("PANEL_OUTPUTS") = kPanelOutputs;
  nb::class_<SharedWorkspace>(module, "LinearWorkspace",
                              "Scratch memory of layers that run one after the other.")
      .def(nb::init<>());
  nb::class_<Panels>(module, "Panels", "The weights of a linear layer, in panels.")
      .def(nb::init<Output, int64_t, std::optional<Array>, SharedWorkspace&,
                    const std::string&>(),
           "numbers"_a.noconvert(), nb::kw_only(), "outputs"_a,
           "bias"_a.noconvert().none(), "workspace"_a, "kernel"_a,
           nb::keep_alive<1, 5>())
      .def("pack", &Panels::pack, "weight"_a.noconvert(), nb::kw_only(), "num_threads"_a)
      .def("unpack", &Panels::unpack, "weight"_a.noconvert(), nb::kw_only(),
           "num_threads"_a)
      .def("look_up", &Panels::look_up, "ids"_a.noconvert(), "out"_a.noconvert(),
           nb::kw_only(), "num_threads"_a)
      .def("multiply", &Panels::multiply, "rows"_a, "out"_a, nb::kw_only(),
           "num_threads"_a);
  nb::class_<Activation>(module, "Activation", "An activation, number by number.")
      .def(nb::init<const std::string&, const std::string&>(), "function"_a, nb::kw_only(),
           "kernel"_a)
      .def("apply", &Activation::apply, "numbers"_a, "out"_a, nb::kw_only(),
           "num_threads"_a);
}

}  // namespace prefold
