// Activations, compiled once for each instruction set.
//
// Whole vectors all the way: what is left over is computed in a vector of its own, so the
// same instructions make every number.

#include "activation.h"
#include "simd.h"

namespace PREFOLD_ISA {

using namespace prefold;

// e ** x for x <= 88, exactly 0 below -87, NaN for NaN. Relative error 1e-7. Coefficients
// of Cephes' expf (S. Moshier); the rest after whole powers of two as Cody & Waite 1980.
template <typename Vector> PREFOLD_INLINE Vector exponential(Vector x) {
  const Vector magic = spread_as<Vector>(12582912.0f);  // 1.5 * 2^23 leaves whole numbers
  const Vector shifted = multiply_add(x, spread_as<Vector>(1.44269504088896341f), magic);
  const Vector whole = shifted - magic;
  Vector f = multiply_add(whole, spread_as<Vector>(-0.693359375f), x);
  f = multiply_add(whole, spread_as<Vector>(2.12194440e-4f), f);
  Vector p = spread_as<Vector>(1.9875691500e-4f);
  p = multiply_add(p, f, spread_as<Vector>(1.3981999507e-3f));
  p = multiply_add(p, f, spread_as<Vector>(8.3334519073e-3f));
  p = multiply_add(p, f, spread_as<Vector>(4.1665795894e-2f));
  p = multiply_add(p, f, spread_as<Vector>(1.6666665459e-1f));
  p = multiply_add(p, f, spread_as<Vector>(5.0000001201e-1f));
  p = multiply_add(p * f, f, f) + spread_as<Vector>(1.0f);
  const WholeOf<Vector> exponent = (as_ints(shifted) - as_ints(magic) + 127) << 23;
  return x < spread_as<Vector>(-87.0f) ? spread_as<Vector>(0.0f) : p * as_floats(exponent);
}

template <typename Vector> PREFOLD_INLINE Vector magnitude(Vector x) { return as_floats(as_ints(x) & 0x7fffffff); }

// x / (1 + e ** -(scale * x)), with e to a power that is not above 0.
template <typename Vector> PREFOLD_INLINE Vector gate(Vector x, Vector scale) {
  const Vector e = exponential(spread_as<Vector>(0.0f) - magnitude(x * scale));
  const Vector whole = spread_as<Vector>(1.0f) + e;
  // A NaN fails the comparison, and is in e as well.
  return x * (x * scale >= spread_as<Vector>(0.0f) ? spread_as<Vector>(1.0f) : e) / whole;
}

// erf(z) / z for z ** 2 = square up to 1, by Cephes' erff (S. Moshier).
template <typename Vector> PREFOLD_INLINE Vector error_ratio(Vector square) {
  Vector p = spread_as<Vector>(7.853861353153693e-5f);
  p = multiply_add(p, square, spread_as<Vector>(-8.010193625184903e-4f));
  p = multiply_add(p, square, spread_as<Vector>(5.188327685732524e-3f));
  p = multiply_add(p, square, spread_as<Vector>(-2.685381193529856e-2f));
  p = multiply_add(p, square, spread_as<Vector>(1.128358514861418e-1f));
  p = multiply_add(p, square, spread_as<Vector>(-3.761262582423300e-1f));
  return multiply_add(p, square, spread_as<Vector>(1.128379165726710f));
}

// erfc(z) for z of at least 1, by Cephes' erfcf.
template <typename Vector> PREFOLD_INLINE Vector error_rest(Vector z) {
  const Vector q = spread_as<Vector>(1.0f) / z, y = q * q;
  Vector near = spread_as<Vector>(2.326819970068386e-2f);
  near = multiply_add(near, y, spread_as<Vector>(-1.387039388740657e-1f));
  near = multiply_add(near, y, spread_as<Vector>(3.687424674597105e-1f));
  near = multiply_add(near, y, spread_as<Vector>(-5.824733027278666e-1f));
  near = multiply_add(near, y, spread_as<Vector>(6.210004621745983e-1f));
  near = multiply_add(near, y, spread_as<Vector>(-4.944515323274145e-1f));
  near = multiply_add(near, y, spread_as<Vector>(3.404879937665872e-1f));
  near = multiply_add(near, y, spread_as<Vector>(-2.741127028184656e-1f));
  near = multiply_add(near, y, spread_as<Vector>(5.638259427386472e-1f));
  Vector far = spread_as<Vector>(-1.047766399936249e+1f);
  far = multiply_add(far, y, spread_as<Vector>(1.297719955372516e+1f));
  far = multiply_add(far, y, spread_as<Vector>(-7.495518717768503f));
  far = multiply_add(far, y, spread_as<Vector>(2.921019019210786f));
  far = multiply_add(far, y, spread_as<Vector>(-1.015265279202700f));
  far = multiply_add(far, y, spread_as<Vector>(4.218463358204948e-1f));
  far = multiply_add(far, y, spread_as<Vector>(-2.820767439740514e-1f));
  far = multiply_add(far, y, spread_as<Vector>(5.641895067754075e-1f));
  return exponential(spread_as<Vector>(0.0f) - z * z) * q * (z < spread_as<Vector>(2.0f) ? near : far);
}

// x * Phi(x). The tail is computed by itself: in 1 - erf nothing of it would be left.
template <typename Vector> PREFOLD_INLINE Vector gelu(Vector x) {
  const Vector z = x * spread_as<Vector>(0.70710678118654752f);
  const Vector inside = multiply_add(z * spread_as<Vector>(0.5f), error_ratio(z * z), spread_as<Vector>(0.5f));
  const Vector far = magnitude(z);
  const Vector tail = error_rest(far < spread_as<Vector>(1.0f) ? spread_as<Vector>(1.0f) : far) * spread_as<Vector>(0.5f);
  const Vector outside = z < spread_as<Vector>(0.0f) ? tail : spread_as<Vector>(1.0f) - tail;
  return x * (far < spread_as<Vector>(1.0f) ? inside : outside);
}

template <typename Vector> PREFOLD_INLINE Vector gelu_tanh(Vector x) {
  const Vector cubic = multiply_add(x * x * x, spread_as<Vector>(0.044715f), x);
  // (1 + tanh(y)) / 2 is the sigmoid of 2 * y, without its loss of digits.
  const Vector twice = cubic * spread_as<Vector>(1.5957691216057308f);
  const Vector e = exponential(spread_as<Vector>(0.0f) - magnitude(twice));
  return x * (twice >= spread_as<Vector>(0.0f) ? spread_as<Vector>(1.0f) : e) / (spread_as<Vector>(1.0f) + e);
}

template <Function kFunction, typename Vector> PREFOLD_INLINE Vector value_of(Vector x) {
  if constexpr (kFunction == Function::silu) return gate(x, spread_as<Vector>(1.0f));
  if constexpr (kFunction == Function::quick_gelu) return gate(x, spread_as<Vector>(1.702f));
  if constexpr (kFunction == Function::gelu) return gelu(x);
  return gelu_tanh(x);
}

template <Function kFunction>
static void apply_to_floats(const float* from, int64_t count, float* to) {
  constexpr int kOwn = lanes_of<Widest>;
  int64_t i = 0;
  for (; i + kOwn <= count; i += kOwn) {
    store(to + i, value_of<kFunction>(load_as<Widest>(from + i)));
  }
  if (i == count) return;
  float rest[kOwn] = {};
  std::memcpy(rest, from + i, (count - i) * sizeof(float));
  store(rest, value_of<kFunction>(load_as<Widest>(rest)));
  std::memcpy(to + i, rest, (count - i) * sizeof(float));
}

static void apply(Function function, const float* from, int64_t count, float* to) {
  switch (function) {
    case Function::silu: return apply_to_floats<Function::silu>(from, count, to);
    case Function::gelu: return apply_to_floats<Function::gelu>(from, count, to);
    case Function::gelu_tanh: return apply_to_floats<Function::gelu_tanh>(from, count, to);
    case Function::quick_gelu: return apply_to_floats<Function::quick_gelu>(from, count, to);
  }
}

static void apply_narrow(Function function, const uint16_t* from, int64_t count,
                         uint16_t* to) {
  constexpr int64_t kPiece = 64 * kLanes;
  float numbers[kPiece];
  for (int64_t i = 0; i < count; i += kPiece) {
    const int64_t length = count - i < kPiece ? count - i : kPiece;
    for (int64_t j = 0; j < length; ++j) {
      const uint32_t bits = uint32_t(from[i + j]) << 16;
      std::memcpy(numbers + j, &bits, sizeof bits);
    }
    apply(function, numbers, length, numbers);
    for (int64_t j = 0; j < length; ++j) to[i + j] = float_to_bfloat(numbers[j]);
  }
}

}  // namespace PREFOLD_ISA
