// A decoder layer's arithmetic before and after its attention, each in one go: one team of
// threads, and results that stay in its hands between the steps.
//
// Every number gets the bits that the steps give one by one, as separate modules.
#pragma once

#include <cstdint>
#include <vector>

#include "activation.h"
#include "linear.h"
#include "rows.h"

namespace prefold {

// Rows whose intermediate results are there at once.
constexpr int64_t kSlabRows = 1024;

struct Kernels {
  const LinearKernel& linear;
  const ActivationKernel& activation;
  const RowKernel& rows;
};

struct Projection {
  Weights weights;
  const float* bias;  // as in Product
};

// A layer's products that adapters may add to.
enum Site { kQuery, kKey, kValue, kProjection, kGateSite, kUpSite, kDownSite, kNumSites };

// What an adapter adds to a product: up(scale * down(rows)). Without panels, nothing.
struct LowRank {
  Weights down, up;
  float scale;
};

// Rows [first, end) of a call and what is added to their products, one for each site.
struct AdaptedRows {
  int64_t first, end;
  const LowRank* sites;
};

// down(function(gate(x)) * up(x))
struct GatedMlp {
  Projection gate, up, down;
  Function function;
};

// From a layer's states to what its attention takes.
struct LayerInput {
  Norm norm;
  Projection query, key, value;
  int64_t head_size;
};

// From what a layer's attention gives to its states: x = states + projection(attended),
// and then x + mlp(norm(x)).
struct LayerOutput {
  Projection projection;
  Norm norm;
  GatedMlp mlp;
};

// Rows without gaps, all of one call of one type.
struct InputRows {
  const void *states, *cosine, *sine;
  void *query, *key, *value;
};

struct OutputRows {
  const void *states, *attended;
  void* out;
};

struct Call {
  Element element;  // of all rows
  int64_t num_rows;
  int num_threads;
  // Ascending and disjoint; only where rows are float32.
  std::vector<AdaptedRows> adapted = {};
};

void run_norm(const Kernels&, const Norm&, const void* rows, void* out, const Call&);
void run_mlp(const Kernels&, const GatedMlp&, const void* rows, void* out, const Call&,
             LinearWorkspace&);
void run_input(const Kernels&, const LayerInput&, const InputRows&, const Call&,
               LinearWorkspace&);
void run_output(const Kernels&, const LayerOutput&, const OutputRows&, const Call&,
                LinearWorkspace&);

}  // namespace prefold
