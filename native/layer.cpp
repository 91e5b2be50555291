#include "layer.h"

#include <algorithm>
#include <initializer_list>
#include <memory>

#include "worker.h"

namespace prefold {

namespace {

// Buffers of the workspace.
enum {
  kNormed,
  kMiddle,
  kGate,
  kUp,
  kWide,
  kWideStates,
  kWideOut,
  kWideKey,
  kWideValue,
  kLow,
  kAdded,
  kNumBuffers
};
static_assert(kNumBuffers <= LinearWorkspace::kBuffers, "a buffer for each");

// Fewer numbers than this are not worth another thread.
constexpr int64_t kNormShare = 16384;

// Numbers of a row that is widened without memory of its own.
constexpr int64_t kShortRow = 1024;

// Calls work(worker) on every thread.
template <typename Work>
void run_team(const Kernels& kernels, const Call& call, const Additions& additions,
              int64_t num_weights, LinearWorkspace& workspace, Work work) {
  float* const scratch = workspace.scratch(call.num_threads);
  if (call.num_threads == 1 || is_little(num_weights, call.num_rows)) {
    // In a team of its own, so that nothing waits for the caller's.
#pragma omp parallel num_threads(1)
    work(Worker(kernels, call, additions, scratch));
    return;
  }
#pragma omp parallel num_threads(call.num_threads)
  work(Worker(kernels, call, additions, scratch));
}

// Calls work(first, slab) for slab after slab of a call's rows.
template <typename Work> void for_slabs(const Call& call, Work work) {
  for (int64_t first = 0; first < call.num_rows; first += kSlabRows) {
    Call slab{call.element, std::min(kSlabRows, call.num_rows - first), call.num_threads};
    for (const AdaptedRows& piece : call.adapted) {
      const AdaptedRows here{std::max<int64_t>(piece.first - first, 0),
                             std::min(piece.end - first, slab.num_rows), piece.sites};
      if (here.first < here.end) slab.adapted.push_back(here);
    }
    work(first, slab);
  }
}

// Room for what adapters add to a slab's products.
Additions additions_for(const Call& slab, LinearWorkspace& workspace) {
  constexpr int64_t kSitesOfOneInput = 3;
  int64_t most_ranks = 0, most_outputs = 0;
  for (const AdaptedRows& piece : slab.adapted) {
    for (int site = 0; site < kNumSites; ++site) {
      most_ranks = std::max(most_ranks, piece.sites[site].down.outputs);
      most_outputs = std::max(most_outputs, piece.sites[site].up.outputs);
    }
  }
  const int64_t rows = kSitesOfOneInput * slab.num_rows;
  if (slab.adapted.empty()) return {slab.adapted, nullptr, nullptr, 0, 0};
  return {slab.adapted, workspace.numbers(kLow, rows * most_ranks),
          workspace.numbers(kAdded, rows * most_outputs), most_ranks, most_outputs};
}

int64_t num_weights(std::initializer_list<Projection> projections) {
  int64_t count = 0;
  for (const Projection& each : projections) {
    count += each.weights.outputs * each.weights.inputs;
  }
  return count;
}

}  // namespace

void run_norm(const Kernels& kernels, const Norm& norm, const void* rows, void* out,
              const Call& call) {
  const int64_t width = norm.width, numbers = call.num_rows * width;
  const bool is_narrow = call.element == Element::bfloat16;
  const auto run = [&](Range mine) {
    float short_row[kShortRow];
    std::unique_ptr<float[]> long_row;
    float* row_numbers = short_row;
    if (is_narrow && width > kShortRow) {
      long_row.reset(new float[width]);
      row_numbers = long_row.get();
    }
    for (int64_t row = mine.first; row < mine.end; ++row) {
      if (!is_narrow) {
        kernels.rows.normalize(norm, static_cast<const float*>(rows) + row * width, false,
                               static_cast<float*>(out) + row * width);
        continue;
      }
      widen(static_cast<const uint16_t*>(rows) + row * width, width, row_numbers);
      kernels.rows.normalize(norm, row_numbers, true, row_numbers);
      write_narrow(row_numbers, width, static_cast<uint16_t*>(out) + row * width);
    }
  };
  const int64_t parts = std::clamp<int64_t>(numbers / kNormShare, 1, call.num_threads);
  if (parts == 1) {
    run({0, call.num_rows});
    return;
  }
#pragma omp parallel for num_threads(int(parts)) schedule(static)
  for (int64_t part = 0; part < parts; ++part) run(share(call.num_rows, part, parts));
}

void run_mlp(const Kernels& kernels, const GatedMlp& mlp, const void* rows, void* out,
             const Call& call, LinearWorkspace& workspace) {
  const int64_t width = mlp.gate.weights.inputs, outputs = mlp.down.weights.outputs;
  const int64_t inner = mlp.gate.weights.outputs, bytes = bytes_of(call.element);
  const bool is_narrow = call.element == Element::bfloat16;
  for_slabs(call, [&](int64_t first, const Call& slab) {
    const int64_t count = slab.num_rows;
    float* const gate = workspace.numbers(kGate, count * inner);
    float* const up = workspace.numbers(kUp, count * inner);
    float* const wide = is_narrow ? workspace.numbers(kWide, count * width) : nullptr;
    void* const to = row_of(out, first, outputs * bytes);
    float* const sums = is_narrow ? workspace.numbers(kWideOut, count * outputs)
                                  : static_cast<float*>(to);
    const Additions additions = additions_for(slab, workspace);
    run_team(kernels, slab, additions, num_weights({mlp.gate, mlp.up, mlp.down}), workspace,
             [&](const Worker& worker) {
               const float* own = worker.read(row_of(rows, first, width * bytes), width, wide);
               if (is_narrow) worker.wait();
               worker.multiply_gated(mlp, own, gate, up);
               worker.wait();
               worker.multiply_onto({mlp.down, kDownSite, gate, sums}, nullptr);
               worker.write(sums, outputs, to);
             });
  });
}

void run_input(const Kernels& kernels, const LayerInput& layer, const InputRows& rows,
               const Call& call, LinearWorkspace& workspace) {
  const int64_t width = layer.norm.width, size = layer.head_size;
  const int64_t queries = layer.query.weights.outputs, keys = layer.key.weights.outputs;
  const int64_t values = layer.value.weights.outputs, bytes = bytes_of(call.element);
  const bool is_narrow = call.element == Element::bfloat16;
  for_slabs(call, [&](int64_t first, const Call& slab) {
    const int64_t count = slab.num_rows;
    const auto wide = [&](int buffer, int64_t numbers, void* to) {
      return is_narrow ? workspace.numbers(buffer, count * numbers) : static_cast<float*>(to);
    };
    float* const normed = workspace.numbers(kNormed, count * width);
    void* const query = row_of(rows.query, first, queries * bytes);
    void* const key = row_of(rows.key, first, keys * bytes);
    void* const value = row_of(rows.value, first, values * bytes);
    float* const query_sums = wide(kWide, queries, query);
    float* const key_sums = wide(kWideKey, keys, key);
    float* const value_sums = wide(kWideValue, values, value);
    float* const turns = is_narrow ? workspace.numbers(kWideStates, 2 * count * size) : nullptr;
    const Additions additions = additions_for(slab, workspace);
    run_team(
        kernels, slab, additions, num_weights({layer.query, layer.key, layer.value}),
        workspace, [&](const Worker& worker) {
          const void* states = row_of(rows.states, first, width * bytes);
          worker.normalize(layer.norm, worker.read(states, width, normed), normed);
          const float* cosine =
              worker.read(row_of(rows.cosine, first, size * bytes), size, turns);
          const float* sine = worker.read(row_of(rows.sine, first, size * bytes), size,
                                          turns + (is_narrow ? count * size : 0));
          worker.wait();
          worker.lower(normed, {kQuery, kKey, kValue});
          worker.multiply_all({{layer.query, kQuery, normed, query_sums},
                               {layer.key, kKey, normed, key_sums},
                               {layer.value, kValue, normed, value_sums}});
          worker.wait();
          worker.rotate(query_sums, queries / size, size, cosine, sine, query);
          worker.rotate(key_sums, keys / size, size, cosine, sine, key);
          worker.round_and_write(value_sums, count * values, value);
        });
  });
}

void run_output(const Kernels& kernels, const LayerOutput& layer, const OutputRows& rows,
                const Call& call, LinearWorkspace& workspace) {
  const GatedMlp& mlp = layer.mlp;
  const int64_t width = layer.norm.width, attended = layer.projection.weights.inputs;
  const int64_t inner = mlp.gate.weights.outputs, bytes = bytes_of(call.element);
  const bool is_narrow = call.element == Element::bfloat16;
  for_slabs(call, [&](int64_t first, const Call& slab) {
    const int64_t count = slab.num_rows;
    const auto wide = [&](int buffer, int64_t numbers) {
      return is_narrow ? workspace.numbers(buffer, count * numbers) : nullptr;
    };
    float* const normed = workspace.numbers(kNormed, count * width);
    float* const gate = workspace.numbers(kGate, count * inner);
    float* const up = workspace.numbers(kUp, count * inner);
    float* const wide_attended = wide(kWide, attended);
    float* const wide_states = wide(kWideStates, width);
    void* const to = row_of(rows.out, first, width * bytes);
    float* const sums = is_narrow ? wide(kWideOut, width) : static_cast<float*>(to);
    float* const middle = workspace.numbers(kMiddle, count * width);
    const Additions additions = additions_for(slab, workspace);
    run_team(
        kernels, slab, additions,
        num_weights({layer.projection, mlp.gate, mlp.up, mlp.down}), workspace,
        [&](const Worker& worker) {
          const float* states =
              worker.read(row_of(rows.states, first, width * bytes), width, wide_states);
          const float* own = worker.read(row_of(rows.attended, first, attended * bytes),
                                         attended, wide_attended);
          if (is_narrow) worker.wait();
          worker.lower(own, {kProjection});
          worker.multiply_onto({layer.projection, kProjection, own, middle}, states);
          worker.wait();
          worker.normalize(layer.norm, middle, normed);
          worker.wait();
          worker.lower(normed, {kGateSite, kUpSite});
          worker.multiply_gated(mlp, normed, gate, up);
          worker.wait();
          worker.lower(gate, {kDownSite});
          worker.multiply_onto({mlp.down, kDownSite, gate, sums}, middle);
          worker.write(sums, width, to);
        });
  });
}

}  // namespace prefold
