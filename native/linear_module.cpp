// Bindings of linear layers and activations. Everything that comes from outside is checked
// before any memory is touched.
#include "linear_module.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>

#include "checks.h"
#include "functions.h"
#include "panels.h"
#include "tensor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace prefold {

namespace {

class Activation {
 public:
  Activation(const std::string& function, const std::string& kernel)
      : function_(function_of(function)),
        kernel_(choose(kernel, kActivationKernels)) {}

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
