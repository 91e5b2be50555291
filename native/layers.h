// Norms, gated MLPs and both halves of a decoder layer as Python holds them. Everything that
// comes from outside is checked before any memory is touched.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "checks.h"
#include "functions.h"
#include "layer.h"
#include "panels.h"
#include "tensor.h"

namespace prefold {

constexpr const RowKernel* kRowKernels[] = {
#if defined(PREFOLD_HAS_X86)
    &kAvx512Rows,
    &kAvx2Rows,
#endif
    &kPortableRows,
};

// The kernels that belong to those of some panels.
inline Kernels kernels_beside(const LinearKernel& linear) {
  const std::string name = linear.name;
  return {linear, choose(name, kActivationKernels), choose(name, kRowKernels)};
}

inline Projection projection_of(const Panels& panels) { return {panels.weights(), panels.bias()}; }

inline void require_alike(const Panels& one, const Panels& other) {
  require(&one.workspace() == &other.workspace() && &one.kernel() == &other.kernel(),
          "panels that are used together must share workspace and kernel");
}

// Checks that a tensor has `width` numbers for each of a call's rows, whatever axes they
// are counted by; returns where they are.
inline void* rows_of(const Tensor& tensor, const Call& call, int64_t width, const char* name) {
  require(element_of(tensor, name) == call.element, name, " must have the rows' type");
  require_no_gaps(tensor, name);
  require(int64_t(tensor.size()) == call.num_rows * width, name,
          " must have as many rows, of the right size");
  return tensor.data();
}

inline Call call_on(const Tensor& rows, int64_t width, int num_threads, const char* name) {
  require_threads(num_threads);
  return {element_of(rows, name), count_rows(rows, width, name), num_threads};
}

class RowNorm {
 public:
  RowNorm(Array weight, double epsilon, const std::string& kernel)
      : weight_(std::move(weight)), kernels_(kernels_beside(choose(kernel, kLinearKernels))) {
    require(element_of(weight_, "the weight") == Element::float32,
            "the weight must be float32");
    require(weight_.ndim() == 1 && weight_.shape(0) >= 1 &&
                int64_t(weight_.shape(0)) < kLimit,
            "the weight must have one axis");
    require_no_gaps(weight_, "the weight");
    require(std::isfinite(epsilon) && epsilon >= 0, "epsilon must not be negative");
    norm_ = {static_cast<const float*>(weight_.data()), int64_t(weight_.shape(0)), epsilon};
  }

  void apply(nb::handle given_rows, nb::handle given_out, int num_threads) const {
    const Tensor rows(given_rows, "the rows"), out(given_out, "out");
    const Call call = call_on(rows, norm_.width, num_threads, "the rows");
    void* const to = rows_of(out, call, norm_.width, "out");
    const nb::gil_scoped_release unlocked;
    run_norm(kernels_, norm_, rows.data(), to, call);
  }

  const Norm& norm() const { return norm_; }

 private:
  Array weight_;  // keeps the memory
  Kernels kernels_;
  Norm norm_{};
};

class Mlp {
 public:
  Mlp(const Panels& gate, const Panels& up, const Panels& down, const std::string& function)
      : mlp_{projection_of(gate), projection_of(up), projection_of(down),
             function_of(function)},
        kernels_(kernels_beside(gate.kernel())),
        workspace_(gate.workspace()) {
    require_alike(gate, up);
    require_alike(gate, down);
    require(up.weights().inputs == gate.weights().inputs &&
                up.weights().outputs == gate.weights().outputs &&
                down.weights().inputs == gate.weights().outputs,
            "gate, up and down must fit together");
  }

  void run(nb::handle given_rows, nb::handle given_out, int num_threads) const {
    const Tensor rows(given_rows, "the rows"), out(given_out, "out");
    const Call call = call_on(rows, mlp_.gate.weights.inputs, num_threads, "the rows");
    void* const to = rows_of(out, call, mlp_.down.weights.outputs, "out");
    const nb::gil_scoped_release unlocked;
    workspace_.use([&](LinearWorkspace& workspace) {
      run_mlp(kernels_, mlp_, rows.data(), to, call, workspace);
    });
  }

  const GatedMlp& mlp() const { return mlp_; }
  const Kernels& kernels() const { return kernels_; }
  SharedWorkspace& workspace() const { return workspace_; }

 private:
  GatedMlp mlp_;
  Kernels kernels_;
  SharedWorkspace& workspace_;
};

// What an adapter adds to one layer's products.
class LayerAdapter {
 public:
  // One entry for each site: the panels of both matrices and the scale, or None.
  explicit LayerAdapter(const nb::list& entries) {
    require(nb::len(entries) == kNumSites, "an adapter has an entry for each product");
    for (int site = 0; site < kNumSites; ++site) {
      const nb::object entry = entries[site];
      if (entry.is_none()) continue;
      const nb::tuple parts = nb::cast<nb::tuple>(entry);
      require(nb::len(parts) == 3, "an entry is two panels and a scale");
      const Panels &down = nb::cast<const Panels&>(parts[0]),
                   &up = nb::cast<const Panels&>(parts[1]);
      require(down.weights().element == Element::float32 &&
                  up.weights().element == Element::float32,
              "the panels of an adapter must be float32");
      require(down.bias() == nullptr && up.bias() == nullptr,
              "the panels of an adapter must have no bias");
      require(up.weights().inputs == down.weights().outputs,
              "the panels of an adapter must have one rank");
      sites_[site] = {down.weights(), up.weights(), float(nb::cast<double>(parts[2]))};
      held_.push_back(parts);
    }
  }

  const LowRank* sites() const { return sites_; }

  void require_fits(Site site, const Weights& product) const {
    const LowRank& own = sites_[site];
    require(own.down.panels == nullptr || (own.down.inputs == product.inputs &&
                                           own.up.outputs == product.outputs),
            "an adapter must fit the products that it adds to");
  }

 private:
  LowRank sites_[kNumSites]{};
  std::vector<nb::object> held_;  // keep the memory
};

struct SiteOf {
  Site site;
  const Weights& product;
};

// Rows and adapters as Python hands them over: (first, end, LayerAdapter). They have to
// outlive the call: what is given is no list, which another thread may change meanwhile.
inline void read_adapted(const nb::tuple& given, std::initializer_list<SiteOf> sites,
                         Call& call) {
  int64_t before = 0;
  for (const nb::handle each : given) {
    require(nb::isinstance<nb::tuple>(each) && nb::len(each) == 3,
            "adapted rows are two numbers and an adapter");
    const nb::tuple entry = nb::borrow<nb::tuple>(each);
    int64_t first = 0, end = 0;
    require(nb::try_cast(entry[0], first) && nb::try_cast(entry[1], end),
            "adapted rows are two numbers and an adapter");
    const LayerAdapter& adapter = cast_to<LayerAdapter>(
        entry[2], "adapted rows are two numbers and an adapter");
    require(before <= first && first < end && end <= call.num_rows,
            "adapted rows must ascend and be rows of the call");
    require(call.element == Element::float32, "adapted rows must be float32");
    for (const SiteOf& own : sites) adapter.require_fits(own.site, own.product);
    call.adapted.push_back({first, end, adapter.sites()});
    before = end;
  }
}

class LayerStart {
 public:
  LayerStart(const RowNorm& norm, const Panels& query, const Panels& key,
             const Panels& value, int64_t head_size)
      : layer_{norm.norm(), projection_of(query), projection_of(key), projection_of(value),
               head_size},
        kernels_(kernels_beside(query.kernel())),
        workspace_(query.workspace()) {
    require_alike(query, key);
    require_alike(query, value);
    require(head_size >= 2 && head_size % 2 == 0 && head_size < kLimit,
            "the size of a head must be even");
    for (const Panels* each : {&query, &key, &value}) {
      require(each->weights().inputs == norm.norm().width &&
                  each->weights().outputs % head_size == 0,
              "norm, query, key and value must fit together");
    }
  }

  void run(nb::handle given_states, nb::handle given_cosine, nb::handle given_sine,
           nb::handle given_query, nb::handle given_key, nb::handle given_value,
           int num_threads, const nb::list& adapted) const {
    const Tensor states(given_states, "the states"), cosine(given_cosine, "the cosine"),
        sine(given_sine, "the sine"), query(given_query, "the query"),
        key(given_key, "the key"), value(given_value, "the value");
    Call call = call_on(states, layer_.norm.width, num_threads, "the states");
    const nb::tuple kept(adapted);
    read_adapted(kept, call);
    const InputRows rows{states.data(),
                         rows_of(cosine, call, layer_.head_size, "the cosine"),
                         rows_of(sine, call, layer_.head_size, "the sine"),
                         rows_of(query, call, layer_.query.weights.outputs, "the query"),
                         rows_of(key, call, layer_.key.weights.outputs, "the key"),
                         rows_of(value, call, layer_.value.weights.outputs, "the value")};
    const nb::gil_scoped_release unlocked;
    workspace_.use([&](LinearWorkspace& workspace) {
      run_input(kernels_, layer_, rows, call, workspace);
    });
  }

  void read_adapted(const nb::tuple& given, Call& call) const {
    prefold::read_adapted(given,
                          {{kQuery, layer_.query.weights},
                           {kKey, layer_.key.weights},
                           {kValue, layer_.value.weights}},
                          call);
  }

  const LayerInput& layer() const { return layer_; }
  const Kernels& kernels() const { return kernels_; }
  SharedWorkspace& workspace() const { return workspace_; }

 private:
  LayerInput layer_;
  Kernels kernels_;
  SharedWorkspace& workspace_;
};

class LayerEnd {
 public:
  LayerEnd(const Panels& projection, const RowNorm& norm, const Mlp& mlp)
      : layer_{projection_of(projection), norm.norm(), mlp.mlp()},
        kernels_(mlp.kernels()),
        workspace_(mlp.workspace()) {
    const int64_t width = norm.norm().width;
    require(&projection.workspace() == &workspace_ &&
                &projection.kernel() == &kernels_.linear,
            "panels that are used together must share workspace and kernel");
    require(projection.weights().outputs == width &&
                layer_.mlp.gate.weights.inputs == width &&
                layer_.mlp.down.weights.outputs == width,
            "projection, norm and MLP must fit together");
  }

  void run(nb::handle given_states, nb::handle given_attended, nb::handle given_out,
           int num_threads, const nb::list& adapted) const {
    const Tensor states(given_states, "the states"),
        attended(given_attended, "what was attended to"), out(given_out, "out");
    Call call = call_on(states, layer_.norm.width, num_threads, "the states");
    const nb::tuple kept(adapted);
    read_adapted(kept, call);
    const OutputRows rows{states.data(),
                          rows_of(attended, call, layer_.projection.weights.inputs,
                                  "what was attended to"),
                          rows_of(out, call, layer_.norm.width, "out")};
    const nb::gil_scoped_release unlocked;
    workspace_.use([&](LinearWorkspace& workspace) {
      run_output(kernels_, layer_, rows, call, workspace);
    });
  }

  void read_adapted(const nb::tuple& given, Call& call) const {
    prefold::read_adapted(given,
                          {{kProjection, layer_.projection.weights},
                           {kGateSite, layer_.mlp.gate.weights},
                           {kUpSite, layer_.mlp.up.weights},
                           {kDownSite, layer_.mlp.down.weights}},
                          call);
  }

  const LayerOutput& layer() const { return layer_; }
  const Kernels& kernels() const { return kernels_; }
  SharedWorkspace& workspace() const { return workspace_; }

 private:
  LayerOutput layer_;
  Kernels kernels_;
  SharedWorkspace& workspace_;
};

}  // namespace prefold
