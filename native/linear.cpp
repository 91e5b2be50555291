#include "linear.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "parts.h"

namespace prefold {

namespace {

// Where number `output` of a panel's stands among its 16.
int slot_of(int output, Element element) {
  if (element == Element::float32) return output;
  const int half = kPanelOutputs / 2;
  return output < half ? 2 * output : 2 * (output - half) + 1;
}

template <typename Number> struct Panel {
  Number* data;
  int num_outputs;
};

// Panel `index` of [panels][inputs][16], and how many of its outputs there are.
template <typename Number>
Panel<Number> panel_at(Number* panels, const Weights& shape, int64_t index) {
  const int64_t left = shape.outputs - index * kPanelOutputs;
  return {panels + index * shape.inputs * kPanelOutputs,
          int(std::min<int64_t>(left, kPanelOutputs))};
}

template <typename Number>
void pack_panel(const Matrix& from, const Weights& shape, Number* panels, int64_t index) {
  const Panel<Number> panel = panel_at(panels, shape, index);
  const Number* first = static_cast<const Number*>(from.data) +
                        index * kPanelOutputs * from.output_stride;
  for (int64_t input = 0; input < shape.inputs; ++input) {
    Number* to = panel.data + input * kPanelOutputs;
    for (int output = 0; output < kPanelOutputs; ++output) {
      const int64_t at = output * from.output_stride + input * from.input_stride;
      to[slot_of(output, shape.element)] = output < panel.num_outputs ? first[at] : 0;
    }
  }
}

template <typename Number>
void copy_output(const Weights& from, int64_t output, Number* to) {
  const Number* all = static_cast<const Number*>(from.panels);
  const Number* panel = all + output / kPanelOutputs * from.inputs * kPanelOutputs;
  const int slot = slot_of(int(output % kPanelOutputs), from.element);
  for (int64_t input = 0; input < from.inputs; ++input) {
    to[input] = panel[input * kPanelOutputs + slot];
  }
}

void copy_outputs(const Weights& from, int64_t count, const int64_t* ids, void* to,
                  int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(static) if (count > 1)
  for (int64_t i = 0; i < count; ++i) {
    const int64_t output = ids == nullptr ? i : ids[i];
    if (from.element == Element::float32) {
      copy_output(from, output, static_cast<float*>(to) + i * from.inputs);
    } else {
      copy_output(from, output, static_cast<uint16_t*>(to) + i * from.inputs);
    }
  }
}

}  // namespace

void pack(const Matrix& from, const Weights& shape, void* panels, int num_threads) {
  const int64_t num_panels = panels_of(shape.outputs);
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (int64_t panel = 0; panel < num_panels; ++panel) {
    if (shape.element == Element::float32) {
      pack_panel(from, shape, static_cast<float*>(panels), panel);
    } else {
      pack_panel(from, shape, static_cast<uint16_t*>(panels), panel);
    }
  }
}

void unpack(const Weights& from, void* to, int num_threads) {
  copy_outputs(from, from.outputs, nullptr, to, num_threads);
}

void look_up(const Weights& from, const int64_t* ids, int64_t num_ids, void* to,
             int num_threads) {
  copy_outputs(from, num_ids, ids, to, num_threads);
}

void multiply(const LinearKernel& kernel, Product product, const uint16_t* narrow_rows,
              int64_t num_rows, int num_threads, LinearWorkspace& workspace) {
  const Weights& weights = product.weights;
  const int64_t num_weights = weights.outputs * weights.inputs;
  if (is_little(num_weights, num_rows)) num_threads = 1;
  const int64_t numbers = num_rows * weights.inputs;
  float* widened = nullptr;
  if (narrow_rows != nullptr) {
    widened = workspace.numbers(0, numbers);
    product.rows = widened;
  }
  float* scratch = workspace.scratch(num_threads);
  const auto run = [&](int thread, int team) {
    for_own_parts(panels_of(weights.outputs), num_rows, thread, team,
                  [&](Range rows, Range panels) {
                    kernel.multiply(product, rows, panels,
                                    scratch + thread * kLinearScratchNumbers);
                  });
  };
  if (num_threads == 1) {
    if (widened != nullptr) widen(narrow_rows, numbers, widened);
    run(0, 1);
    return;
  }
#pragma omp parallel num_threads(num_threads)
  {
    const int thread = omp_get_thread_num(), team = omp_get_num_threads();
    if (widened != nullptr) {
      const Range own = share(numbers, thread, team);
      widen(narrow_rows + own.first, own.end - own.first, widened + own.first);
#pragma omp barrier
    }
    run(thread, team);
  }
}

}  // namespace prefold
