// A decoder layer's arithmetic before and after its attention, each in one go: one team of
// threads, and results that stay in its hands between the steps.
//
// Every number gets the bits that the steps give one by one, as separate modules.
#pragma once

#include <cstdint>

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
};

void run_norm(const Kernels&, const Norm&, const void* rows, void* out, const Call&);
void run_mlp(const Kernels&, const GatedMlp&, const void* rows, void* out, const Call&,
             LinearWorkspace&);
void run_input(const Kernels&, const LayerInput&, const InputRows&, const Call&,
               LinearWorkspace&);
void run_output(const Kernels&, const LayerOutput&, const OutputRows&, const Call&,
                LinearWorkspace&);

}  // namespace prefold
