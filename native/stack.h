// All decoder layers of a model, one after the other.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "finite.h"
#include "layers.h"
#include "pool.h"

namespace prefold {

// Rows of a pass: what is given, room for what the attention takes and gives, and two places
// that the states of the layers take in turns, the result being in the second one.
struct PassRows {
  nb::handle states, cosine, sine, query, key, value, attended, spare, out;
};

// Runs layers of one shape over rows of float32, without asking Python anything between them.
class Stack {
 public:
  Stack(const nb::list& starts, const nb::list& ends) {
    require(nb::len(starts) == nb::len(ends) && nb::len(starts) >= 1,
            "a stack has as many starts as ends");
    for (size_t i = 0; i < nb::len(starts); ++i) {
      const LayerStart& start =
          cast_to<LayerStart>(starts[i], "a stack is made of LayerStart and LayerEnd");
      const LayerEnd& end =
          cast_to<LayerEnd>(ends[i], "a stack is made of LayerStart and LayerEnd");
      layers_.push_back({&start, &end});
      held_.emplace_back(starts[i]);
      held_.emplace_back(ends[i]);
      const LayerInput &first = layers_[0].start->layer(), &own = start.layer();
      require(&start.workspace() == &layers_[0].start->workspace() &&
                  &end.workspace() == &start.workspace(),
              "layers of a stack must share a workspace");
      require(own.norm.width == first.norm.width && own.head_size == first.head_size &&
                  own.query.weights.outputs == first.query.weights.outputs &&
                  own.key.weights.outputs == first.key.weights.outputs &&
                  own.value.weights.outputs == first.value.weights.outputs &&
                  end.layer().norm.width == first.norm.width &&
                  end.layer().projection.weights.inputs == first.query.weights.outputs,
              "layers of a stack must have one shape");
    }
    require(key_width() == layers_[0].start->layer().value.weights.outputs,
            "keys and values of a stack must have one size");
  }

  // `sites` has the attention of each layer, and `adapted` the rows that pass adapters.
  // Returns whether the last layer's keys and values are finite.
  bool run(Step& step, const nb::list& sites, const PassRows& given,
           const nb::list& adapted, int num_threads) const {
    const LayerInput& shape = layers_[0].start->layer();
    const int64_t width = shape.norm.width, size = shape.head_size;
    const Tensor states(given.states, "the states"), cosine(given.cosine, "the cosine"),
        sine(given.sine, "the sine"), query(given.query, "the query"),
        key(given.key, "the key"), value(given.value, "the value"),
        attended(given.attended, "what was attended to"), spare(given.spare, "the spare"),
        out(given.out, "out");
    const Call call = call_on(states, width, num_threads, "the states");
    require(call.element == Element::float32, "a stack's rows must be float32");
    require(call.num_rows >= step.num_rows(),
            "there are fewer rows than tokens in the slices");
    InputRows input{states.data(),
                    rows_of(cosine, call, size, "the cosine"),
                    rows_of(sine, call, size, "the sine"),
                    rows_of(query, call, query_width(), "the query"),
                    rows_of(key, call, key_width(), "the key"),
                    rows_of(value, call, key_width(), "the value")};
    OutputRows output{states.data(),
                      rows_of(attended, call, query_width(), "what was attended to"),
                      nullptr};
    void* const places[] = {rows_of(spare, call, width, "the spare"),
                            rows_of(out, call, width, "out")};
    const std::vector<Part> parts = parts_of(sites, adapted, step, call);
    const nb::gil_scoped_release unlocked;
    layers_[0].start->workspace().use([&](LinearWorkspace& workspace) {
      for (size_t i = 0; i < layers_.size(); ++i) {
        const auto& [start, end] = layers_[i];
        // The last layer's states are the result.
        output.out = places[(layers_.size() - i) % 2];
        run_input(start->kernels(), start->layer(), input, parts[i].start, workspace);
        parts[i].site->run(step, heads_of(input.query, query_width()),
                           heads_of(input.key, key_width()),
                           heads_of(input.value, key_width()),
                           {static_cast<float*>(const_cast<void*>(output.attended)),
                            call.num_rows},
                           num_threads);
        run_output(end->kernels(), end->layer(), output, parts[i].end, workspace);
        input.states = output.states = output.out;
      }
    });
    const int64_t count = call.num_rows * key_width();
    return are_finite(static_cast<const float*>(input.key), count) &&
           are_finite(static_cast<const float*>(input.value), count);
  }

 private:
  struct Both {
    const LayerStart* start;
    const LayerEnd* end;
  };

  // What one layer needs in a pass.
  struct Part {
    const AttentionSite* site;
    Call start, end;
    nb::object held_site;  // as the lists may be changed meanwhile
    nb::tuple held_rows;
  };

  int64_t query_width() const { return layers_[0].start->layer().query.weights.outputs; }
  int64_t key_width() const { return layers_[0].start->layer().key.weights.outputs; }

  // Rows of heads side by side, heads first.
  Heads heads_of(const void* rows, int64_t width) const {
    return {static_cast<const float*>(rows), layers_[0].start->layer().head_size, width};
  }

  std::vector<Part> parts_of(const nb::list& sites, const nb::list& adapted,
                             const Step& step, const Call& call) const {
    require(nb::len(sites) == layers_.size() && nb::len(adapted) == layers_.size(),
            "there must be a site and a list of adapted rows for each layer");
    const int64_t size = layers_[0].start->layer().head_size;
    std::vector<Part> parts;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const nb::object held = sites[i];
      const AttentionSite& site =
          cast_to<AttentionSite>(held, "each layer's site must be an AttentionSite");
      const Layer& layer = site.layer();
      require(layer.key_size == size && layer.value_size == size &&
                  layer.heads * size == query_width() && layer.kv_heads * size == key_width(),
              "a site must be of the layer's shape");
      site.require_step(step);
      require(nb::isinstance<nb::list>(adapted[i]), "adapted rows must be lists");
      parts.push_back({&site, call, call, held, nb::tuple(nb::object(adapted[i]))});
      layers_[i].start->read_adapted(parts.back().held_rows, parts.back().start);
      layers_[i].end->read_adapted(parts.back().held_rows, parts.back().end);
    }
    return parts;
  }

  std::vector<Both> layers_;
  std::vector<nb::object> held_;  // keep the layers
};

}  // namespace prefold
