// One thread's share of a decoder layer's steps.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "layer.h"
#include "parts.h"

namespace prefold {

inline int64_t bytes_of(Element element) { return element == Element::float32 ? 4 : 2; }

// Writes numbers that have been rounded.
inline void write_narrow(const float* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, from + i, sizeof bits);
    to[i] = uint16_t(bits >> 16);
  }
}

template <typename Number> Number* row_of(Number* rows, int64_t row, int64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<Number>, const char, char>;
  return static_cast<Byte*>(rows) + row * bytes;
}

inline Range columns_of(Range panels, int64_t outputs) {
  return {panels.first * kPanelOutputs, std::min(panels.end * kPanelOutputs, outputs)};
}

struct Target {
  const Projection& projection;
  Site site;
  const float* rows;
  float* out;
};

// Where what adapters add is made.
struct Additions {
  const std::vector<AdaptedRows>& pieces;
  float* low;    // [sites of one input][rows][most_ranks]
  float* added;  // [sites of one input][rows][most_outputs]
  int64_t most_ranks, most_outputs;
};

// One thread of the team that carries out a call; all of them do the same things in the
// same order.
class Worker {
 public:
  Worker(const Kernels& kernels, const Call& call, const Additions& additions,
         float* scratch)
      : kernels_(kernels),
        additions_(additions),
        is_narrow_(call.element == Element::bfloat16),
        num_rows_(call.num_rows),
        thread_(omp_get_thread_num()),
        team_(omp_get_num_threads()),
        scratch_(scratch + thread_ * kLinearScratchNumbers) {}

  void wait() const {
#pragma omp barrier
  }

  Range own(int64_t count) const { return share(count, thread_, team_); }

  // Returns the thread's rows as float32, in `wide` unless they are that already.
  const float* read(const void* rows, int64_t width, float* wide) const {
    if (!is_narrow_) return static_cast<const float*>(rows);
    const Range mine = own(num_rows_);
    widen(static_cast<const uint16_t*>(rows) + mine.first * width,
          (mine.end - mine.first) * width, wide + mine.first * width);
    return wide;
  }

  // Of the thread's rows.
  void normalize(const Norm& norm, const float* from, float* to) const {
    const Range mine = own(num_rows_);
    for (int64_t row = mine.first; row < mine.end; ++row) {
      kernels_.rows.normalize(norm, from + row * norm.width, is_narrow_,
                              to + row * norm.width);
    }
  }

  // `is_next` if the product before was of the same rows too.
  void multiply(const Target& target, Range rows, Range panels, bool is_next = false) const {
    const Projection& projection = target.projection;
    multiply(projection.weights, projection.bias, target.rows, target.out, rows, panels,
             is_next && additions_.pieces.empty());
    for (const AdaptedRows& piece : additions_.pieces) add_to(target, piece, rows, panels);
  }

  // Makes the low ranks of what adapters add to products of these rows, before any of them;
  // then waits. Each thread takes its share of every adapter's rows.
  void lower(const float* rows, std::initializer_list<Site> sites) const {
    if (additions_.pieces.empty()) return;
    for (const AdaptedRows& piece : additions_.pieces) {
      const Range mine = own(piece.end - piece.first);
      for (const Site site : sites) {
        const LowRank& adds = piece.sites[site];
        if (adds.down.panels == nullptr) continue;
        float* const low = low_of(piece, site);
        multiply(adds.down, nullptr, rows + piece.first * adds.down.inputs, low, mine,
                 {0, panels_of(adds.down.outputs)});
        const int64_t rank = adds.down.outputs;
        for (int64_t i = mine.first * rank; i < mine.end * rank; ++i) low[i] *= adds.scale;
      }
    }
    wait();
  }

  // Calls work(rows, panels) for the thread's parts of a product.
  template <typename Work> void for_parts(int64_t num_panels, Work work) const {
    for_own_parts(num_panels, num_rows_, thread_, team_, work);
  }

  // Several products of the same rows, divided as if their panels were those of one.
  void multiply_all(std::initializer_list<Target> targets) const {
    int64_t total = 0;
    for (const Target& target : targets) total += panels_of(target.projection.weights.outputs);
    for_parts(total, [&](Range rows, Range panels) {
      int64_t before = 0;
      bool is_next = false;
      for (const Target& target : targets) {
        const int64_t count = panels_of(target.projection.weights.outputs);
        const Range mine{std::clamp<int64_t>(panels.first - before, 0, count),
                         std::clamp<int64_t>(panels.end - before, 0, count)};
        if (mine.first < mine.end) {
          multiply(target, rows, mine, is_next);
          is_next = true;
        }
        before += count;
      }
    });
  }

  // out = residual + product; the residual is rounded already.
  void multiply_onto(const Target& target, const float* residual) const {
    const int64_t outputs = target.projection.weights.outputs;
    for_parts(panels_of(outputs), [&](Range rows, Range panels) {
      multiply(target, rows, panels);
      const Range columns = columns_of(panels, outputs);
      const int64_t count = columns.end - columns.first;
      for (int64_t row = rows.first; row < rows.end; ++row) {
        const int64_t at = row * outputs + columns.first;
        if (residual != nullptr) {
          kernels_.rows.add(residual + at, count, is_narrow_, target.out + at);
        } else if (is_narrow_) {
          kernels_.rows.round(count, target.out + at);
        }
      }
    });
  }

  // gate = function(gate(rows)) * up(rows)
  void multiply_gated(const GatedMlp& mlp, const float* rows, float* gate, float* up) const {
    const int64_t outputs = mlp.gate.weights.outputs;
    for_parts(panels_of(outputs), [&](Range part, Range panels) {
      multiply({mlp.gate, kGateSite, rows, gate}, part, panels);
      multiply({mlp.up, kUpSite, rows, up}, part, panels, true);
      const Range columns = columns_of(panels, outputs);
      const int64_t count = columns.end - columns.first;
      for (int64_t row = part.first; row < part.end; ++row) {
        float* const to = gate + row * outputs + columns.first;
        float* const by = up + row * outputs + columns.first;
        if (is_narrow_) {
          kernels_.rows.round(count, to);
          kernels_.rows.round(count, by);
        }
        kernels_.activation.apply(mlp.function, to, count, to);
        kernels_.rows.multiply(by, count, is_narrow_, to);
      }
    });
  }

  // Turns the thread's heads, wherever they are; writes them where they are to be.
  void rotate(float* heads, int64_t num_heads, int64_t size, const float* cosine,
              const float* sine, void* out) const {
    const Range mine = own(num_rows_ * num_heads);
    for (int64_t head = mine.first; head < mine.end; ++head) {
      const int64_t at = head / num_heads * size;
      float* const own_head = heads + head * size;
      kernels_.rows.rotate(own_head, cosine + at, sine + at, size, is_narrow_, own_head);
      if (is_narrow_) {
        write_narrow(own_head, size, static_cast<uint16_t*>(out) + head * size);
      }
    }
  }

  // Rounds the thread's share of some numbers, and writes it.
  void round_and_write(float* numbers, int64_t count, void* to) const {
    if (!is_narrow_) return;
    const Range mine = own(count);
    kernels_.rows.round(mine.end - mine.first, numbers + mine.first);
    write_narrow(numbers + mine.first, mine.end - mine.first,
                 static_cast<uint16_t*>(to) + mine.first);
  }

  // Writes results of the thread's columns that have been rounded.
  void write(const float* from, int64_t outputs, void* to) const {
    if (!is_narrow_) return;
    for_parts(panels_of(outputs), [&](Range rows, Range panels) {
      const Range columns = columns_of(panels, outputs);
      for (int64_t row = rows.first; row < rows.end; ++row) {
        const int64_t at = row * outputs + columns.first;
        write_narrow(from + at, columns.end - columns.first,
                     static_cast<uint16_t*>(to) + at);
      }
    });
  }

 private:
  void multiply(const Weights& weights, const float* bias, const float* rows, float* out,
                Range part, Range panels, bool is_of_same_rows = false) const {
    if (part.first >= part.end) return;
    const Product product{weights, rows, bias, out, Element::float32, is_of_same_rows};
    kernels_.linear.multiply(product, part, panels, scratch_);
  }

  // Which of the products of one input a site is: they are made at the same time.
  static int64_t place_of(Site site) {
    return site <= kValue ? int64_t(site) : site == kUpSite ? 1 : 0;
  }

  float* low_of(const AdaptedRows& piece, Site site) const {
    const int64_t row = place_of(site) * num_rows_ + piece.first;
    return additions_.low + row * additions_.most_ranks;
  }

  float* added_of(const AdaptedRows& piece, Site site) const {
    const int64_t row = place_of(site) * num_rows_ + piece.first;
    return additions_.added + row * additions_.most_outputs;
  }

  // Adds to a product what an adapter adds, apart: a fused sum may be rounded once.
  void add_to(const Target& target, const AdaptedRows& piece, Range rows,
              Range panels) const {
    const LowRank& adds = piece.sites[target.site];
    const Range both{std::max(piece.first, rows.first), std::min(piece.end, rows.end)};
    if (adds.up.panels == nullptr || both.first >= both.end) return;
    const int64_t outputs = adds.up.outputs;
    float* const added = added_of(piece, target.site);
    multiply(adds.up, nullptr, low_of(piece, target.site), added,
             {both.first - piece.first, both.end - piece.first}, panels);
    const Range columns = columns_of(panels, outputs);
    for (int64_t row = both.first; row < both.end; ++row) {
      kernels_.rows.add(added + (row - piece.first) * outputs + columns.first,
                        columns.end - columns.first, false,
                        target.out + row * outputs + columns.first);
    }
  }

  const Kernels& kernels_;
  const Additions& additions_;
  const bool is_narrow_;
  const int64_t num_rows_;
  const int thread_, team_;
  float* const scratch_;
};

}  // namespace prefold
