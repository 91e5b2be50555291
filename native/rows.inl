// Steps between matrix products, compiled once for each instruction set. Each number is
// made by the same operations wherever it stands, and so has equal bits in every build.

#include <cmath>

#include "rows.h"
#include "simd.h"

namespace PREFOLD_ISA {

using namespace prefold;

// To bfloat16 and back: to nearest, ties to even.
PREFOLD_INLINE float rounded(float value) {
  const uint32_t bits = uint32_t(float_to_bfloat(value)) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

PREFOLD_INLINE Floats rounded(Floats value) {
  const Ints bits = as_ints(value);
  const Ints nearest = (bits + 0x7fff + ((bits >> 16) & 1)) & int32_t(0xffff0000u);
  const Ints quiet = (bits | 0x400000) & int32_t(0xffff0000u);
  return value != value ? as_floats(quiet) : as_floats(nearest);
}

template <bool kNarrow, typename Number> PREFOLD_INLINE Number kept(Number value) {
  if constexpr (kNarrow) return rounded(value);
  return value;
}

// Squares are exact as doubles, and summed in eight lanes.
static double mean_of_squares(const float* from, int64_t width) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += double(from[i + lane]) * double(from[i + lane]);
    }
  }
  for (int lane = 0; i < width; ++i, ++lane) lanes[lane] += double(from[i]) * double(from[i]);
  const double total = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
                       ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
  return total / double(width);
}

template <bool kNarrow>
static void normalize_row(const Norm& norm, const float* from, float* to) {
  const double mean = mean_of_squares(from, norm.width);
  const float scale = float(1.0 / std::sqrt(mean + norm.epsilon));
  int64_t i = 0;
  for (; i + kLanes <= norm.width; i += kLanes) {
    const Floats x = kept<kNarrow>(load(from + i) * spread(scale));
    store(to + i, kept<kNarrow>(load(norm.weight + i) * x));
  }
  for (; i < norm.width; ++i) {
    to[i] = kept<kNarrow>(norm.weight[i] * kept<kNarrow>(from[i] * scale));
  }
}

static void normalize(const Norm& norm, const float* from, bool is_narrow, float* to) {
  is_narrow ? normalize_row<true>(norm, from, to) : normalize_row<false>(norm, from, to);
}

// A pair that is turned; cosine and sine are given for each of its numbers.
template <typename Number> struct Turned {
  Number low, high;
};

template <bool kNarrow, typename Number>
PREFOLD_INLINE Turned<Number> turned(Number low, Number high, Number cosine_low,
                                              Number cosine_high, Number sine_low,
                                              Number sine_high) {
  low = kept<kNarrow>(low);
  high = kept<kNarrow>(high);
  return {kept<kNarrow>(kept<kNarrow>(low * cosine_low) - kept<kNarrow>(high * sine_low)),
          kept<kNarrow>(kept<kNarrow>(high * cosine_high) + kept<kNarrow>(low * sine_high))};
}

template <bool kNarrow>
static void rotate_head(const float* from, const float* cosine, const float* sine,
                        int64_t size, float* to) {
  const int64_t half = size / 2;
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const auto pair = turned<kNarrow>(load(from + i), load(from + half + i),
                                      load(cosine + i), load(cosine + half + i),
                                      load(sine + i), load(sine + half + i));
    store(to + i, pair.low);
    store(to + half + i, pair.high);
  }
  for (; i < half; ++i) {
    const auto pair = turned<kNarrow>(from[i], from[half + i], cosine[i], cosine[half + i],
                                      sine[i], sine[half + i]);
    to[i] = pair.low;
    to[half + i] = pair.high;
  }
}

static void rotate(const float* from, const float* cosine, const float* sine, int64_t size,
                   bool is_narrow, float* to) {
  is_narrow ? rotate_head<true>(from, cosine, sine, size, to)
            : rotate_head<false>(from, cosine, sine, size, to);
}

template <bool kNarrow, bool kProduct>
static void combine(const float* by, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Floats a = kept<kNarrow>(load(to + i)), b = load(by + i);
    store(to + i, kept<kNarrow>(kProduct ? a * b : a + b));
  }
  for (; i < count; ++i) {
    const float a = kept<kNarrow>(to[i]), b = by[i];
    to[i] = kept<kNarrow>(kProduct ? a * b : a + b);
  }
}

static void multiply(const float* by, int64_t count, bool is_narrow, float* to) {
  is_narrow ? combine<true, true>(by, count, to) : combine<false, true>(by, count, to);
}

static void add(const float* by, int64_t count, bool is_narrow, float* to) {
  is_narrow ? combine<true, false>(by, count, to) : combine<false, false>(by, count, to);
}

static void round(int64_t count, float* numbers) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(numbers + i, rounded(load(numbers + i)));
  for (; i < count; ++i) numbers[i] = rounded(numbers[i]);
}

}  // namespace PREFOLD_ISA
