// The weights of a linear layer as Python holds them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "checks.h"
#include "linear.h"
#include "tensor.h"

namespace prefold {

constexpr const LinearKernel* kLinearKernels[] = {
#if defined(PREFOLD_HAS_AMX)
    &kAmxLinear,
#endif
#if defined(PREFOLD_HAS_X86)
    &kAvx512Linear,
    &kAvx2Linear,
#endif
    &kPortableLinear,
};

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
        kernel_(choose(kernel, kLinearKernels)) {
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

  const Weights& weights() const { return weights_; }
  const float* bias() const {
    return bias_.has_value() ? static_cast<const float*>(bias_->data()) : nullptr;
  }
  const LinearKernel& kernel() const { return kernel_; }
  SharedWorkspace& workspace() const { return workspace_; }

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
        bias(),
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

}  // namespace prefold
