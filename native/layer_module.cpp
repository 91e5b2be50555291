// Bindings of norms, gated MLPs, decoder layers and stacks of them.
#include "layer_module.h"

#include <nanobind/stl/string.h>

#include <string>

#include "layers.h"
#include "stack.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace prefold {

void bind_layer(nb::module_& module) {
  nb::class_<RowNorm>(module, "RowNorm", "A root-mean-square norm, row by row.")
      .def(nb::init<Array, double, const std::string&>(), "weight"_a.noconvert(),
           nb::kw_only(), "epsilon"_a, "kernel"_a)
      .def("apply", &RowNorm::apply, "rows"_a, "out"_a, nb::kw_only(), "num_threads"_a);
  nb::class_<Mlp>(module, "Mlp", "A gated MLP.")
      .def(nb::init<const Panels&, const Panels&, const Panels&, const std::string&>(),
           nb::kw_only(), "gate"_a, "up"_a, "down"_a, "function"_a,
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def("run", &Mlp::run, "rows"_a, "out"_a, nb::kw_only(), "num_threads"_a);
  nb::class_<LayerAdapter>(module, "LayerAdapter",
                           "What an adapter adds to a decoder layer's products.")
      .def(nb::init<const nb::list&>(), "low_ranks"_a);
  nb::class_<LayerStart>(module, "LayerStart",
                         "A decoder layer up to its attention: norm, projections, rotary.")
      .def(nb::init<const RowNorm&, const Panels&, const Panels&, const Panels&, int64_t>(),
           nb::kw_only(), "norm"_a, "query"_a, "key"_a, "value"_a, "head_size"_a,
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(),
           nb::keep_alive<1, 5>())
      .def("run", &LayerStart::run, "states"_a, "cosine"_a, "sine"_a, "query"_a, "key"_a,
           "value"_a, nb::kw_only(), "num_threads"_a, "adapted"_a = nb::list());
  nb::class_<LayerEnd>(module, "LayerEnd",
                       "A decoder layer after its attention: projection, norm, MLP.")
      .def(nb::init<const Panels&, const RowNorm&, const Mlp&>(), nb::kw_only(),
           "projection"_a, "norm"_a, "mlp"_a, nb::keep_alive<1, 2>(),
           nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def("run", &LayerEnd::run, "states"_a, "attended"_a, "out"_a, nb::kw_only(),
           "num_threads"_a, "adapted"_a = nb::list());
  nb::class_<Stack>(module, "Stack", "All decoder layers of a model.")
      .def(nb::init<const nb::list&, const nb::list&>(), "starts"_a, "ends"_a)
      .def(
          "run",
          [](const Stack& stack, Step& step, const nb::list& sites, nb::handle states,
             nb::handle cosine, nb::handle sine, nb::handle query, nb::handle key,
             nb::handle value, nb::handle attended, nb::handle spare, nb::handle out,
             const nb::list& adapted, int num_threads) {
            return stack.run(
                step, sites,
                {states, cosine, sine, query, key, value, attended, spare, out}, adapted,
                num_threads);
          },
          "step"_a, "sites"_a, "states"_a, "cosine"_a, "sine"_a, "query"_a, "key"_a,
          "value"_a, "attended"_a, "spare"_a, "out"_a, nb::kw_only(), "adapted"_a,
          "num_threads"_a);
}

}  // namespace prefold
