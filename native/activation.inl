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
PREFOLD_INLINE Floats exponential(Floats x) {
  const Floats magic = spread(12582912.0f);  // 1.5 * 2^23 leaves whole numbers
  const Floats shifted = multiply_add(x, spread(1.44269504088896341f), magic);
  const Floats whole = shifted - magic;
  Floats f = multiply_add(whole, spread(-0.693359375f), x);
  f = multiply_add(whole, spread(2.12194440e-4f), f);
  Floats p = spread(1.9875691500e-4f);
  p = multiply_add(p, f, spread(1.3981999507e-3f));
  p = multiply_add(p, f, spread(8.3334519073e-3f));
  p = multiply_add(p, f, spread(4.1665795894e-2f));
  p = multiply_add(p, f, spread(1.6666665459e-1f));
  p = multiply_add(p, f, spread(5.0000001201e-1f));
  p = multiply_add(p * f, f, f) + spread(1.0f);
  const Ints exponent = (as_ints(shifted) - as_ints(magic) + 127) << 23;
  return x < spread(-87.0f) ? spread(0.0f) : p * as_floats(exponent);
}

PREFOLD_INLINE Floats magnitude(Floats x) { return as_floats(as_ints(x) & 0x7fffffff); }

// x / (1 + e ** -(scale * x)), with e to a power that is not above 0.
PREFOLD_INLINE Floats gate(Floats x, Floats scale) {
  const Floats e = exponential(spread(0.0f) - magnitude(x * scale));
  const Floats whole = spread(1.0f) + e;
  // A NaN fails the comparison, and is in e as well.
  return x * (x * scale >= spread(0.0f) ? spread(1.0f) : e) / whole;
}

// erf(z) / z for z ** 2 = square up to 1, by Cephes' erff (S. Moshier).
PREFOLD_INLINE Floats error_ratio(Floats square) {
  Floats p = spread(7.853861353153693e-5f);
  p = multiply_add(p, square, spread(-8.010193625184903e-4f));
  p = multiply_add(p, square, spread(5.188327685732524e-3f));
  p = multiply_add(p, square, spread(-2.685381193529856e-2f));
  p = multiply_add(p, square, spread(1.128358514861418e-1f));
  p = multiply_add(p, square, spread(-3.761262582423300e-1f));
  return multiply_add(p, square, spread(1.128379165726710f));
}

// erfc(z) for z of at least 1, by Cephes' erfcf.
PREFOLD_INLINE Floats error_rest(Floats z) {
  const Floats q = spread(1.0f) / z, y = q * q;
  Floats near = spread(2.326819970068386e-2f);
  near = multiply_add(near, y, spread(-1.387039388740657e-1f));
  near = multiply_add(near, y, spread(3.687424674597105e-1f));
  near = multiply_add(near, y, spread(-5.824733027278666e-1f));
  near = multiply_add(near, y, spread(6.210004621745983e-1f));
  near = multiply_add(near, y, spread(-4.944515323274145e-1f));
  near = multiply_add(near, y, spread(3.404879937665872e-1f));
  near = multiply_add(near, y, spread(-2.741127028184656e-1f));
  near = multiply_add(near, y, spread(5.638259427386472e-1f));
  Floats far = spread(-1.047766399936249e+1f);
  far = multiply_add(far, y, spread(1.297719955372516e+1f));
  far = multiply_add(far, y, spread(-7.495518717768503f));
  far = multiply_add(far, y, spread(2.921019019210786f));
  far = multiply_add(far, y, spread(-1.015265279202700f));
  far = multiply_add(far, y, spread(4.218463358204948e-1f));
  far = multiply_add(far, y, spread(-2.820767439740514e-1f));
  far = multiply_add(far, y, spread(5.641895067754075e-1f));
  return exponential(spread(0.0f) - z * z) * q * (z < spread(2.0f) ? near : far);
}

// x * Phi(x). The tail is computed by itself: in 1 - erf nothing of it would be left.
PREFOLD_INLINE Floats gelu(Floats x) {
  const Floats z = x * spread(0.70710678118654752f);
  const Floats inside = multiply_add(z * spread(0.5f), error_ratio(z * z), spread(0.5f));
  const Floats far = magnitude(z);
  const Floats tail = error_rest(far < spread(1.0f) ? spread(1.0f) : far) * spread(0.5f);
  const Floats outside = z < spread(0.0f) ? tail : spread(1.0f) - tail;
  return x * (far < spread(1.0f) ? inside : outside);
}

PREFOLD_INLINE Floats gelu_tanh(Floats x) {
  const Floats cubic = multiply_add(x * x * x, spread(0.044715f), x);
  // (1 + tanh(y)) / 2 is the sigmoid of 2 * y, without its loss of digits.
  const Floats twice = cubic * spread(1.5957691216057308f);
  const Floats e = exponential(spread(0.0f) - magnitude(twice));
  return x * (twice >= spread(0.0f) ? spread(1.0f) : e) / (spread(1.0f) + e);
}

template <Function kFunction> PREFOLD_INLINE Floats value_of(Floats x) {
  if constexpr (kFunction == Function::silu) return gate(x, spread(1.0f));
  if constexpr (kFunction == Function::quick_gelu) return gate(x, spread(1.702f));
  if constexpr (kFunction == Function::gelu) return gelu(x);
  return gelu_tanh(x);
}

template <Function kFunction>
static void apply_to_floats(const float* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, value_of<kFunction>(load(from + i)));
  if (i == count) return;
  float rest[kLanes] = {};
  std::memcpy(rest, from + i, (count - i) * sizeof(float));
  store(rest, value_of<kFunction>(load(rest)));
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
