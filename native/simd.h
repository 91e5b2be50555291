// Eight and sixteen floats at a time: the one place that differs between instruction sets.
//
// Included by a translation unit that is compiled for one instruction set, inside a
// namespace of its own: nothing here may be shared with code for another one.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(PREFOLD_AVX512)
#define PREFOLD_AVX2  // for eight at a time
#endif

#if defined(PREFOLD_AVX2)
#include <immintrin.h>
#endif

#define PREFOLD_INLINE static inline __attribute__((always_inline))

namespace PREFOLD_ISA {

constexpr int kLanes = 8;

typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));

PREFOLD_INLINE Floats load(const float* from) {
  Floats out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

PREFOLD_INLINE void store(float* to, Floats value) { std::memcpy(to, &value, sizeof value); }

PREFOLD_INLINE Floats spread(float value) {
  return Floats{value, value, value, value, value, value, value, value};
}

// One rounding with AVX2 and two without; which one it is, is part of the numerics. The
// build forbids the compiler to contract anything else.
PREFOLD_INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(PREFOLD_AVX2)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

// Sixteen floats, of which each has the bits that it has among eight: a panel's numbers for
// one input, or a tile's for one row. One register where registers are so wide.
constexpr int kWide = 2 * kLanes;

#if defined(PREFOLD_AVX512)

typedef float Wide __attribute__((vector_size(64)));
typedef int32_t WideInts __attribute__((vector_size(64)));

PREFOLD_INLINE Wide load_wide(const float* from) {
  Wide out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

PREFOLD_INLINE void store(float* to, Wide value) { std::memcpy(to, &value, sizeof value); }

PREFOLD_INLINE Wide join(Floats low, Floats high) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}

PREFOLD_INLINE Wide add(Wide a, Wide b) { return a + b; }

PREFOLD_INLINE Wide multiply_add(Wide a, Wide b, Wide c) {
  return _mm512_fmadd_ps(a, b, c);
}

PREFOLD_INLINE Wide multiply_add(float a, Wide b, Wide c) {
  return _mm512_fmadd_ps(_mm512_set1_ps(a), b, c);
}

PREFOLD_INLINE Wide spread_wide(float value) { return _mm512_set1_ps(value); }

PREFOLD_INLINE Wide multiply(Wide a, float b) { return a * b; }

PREFOLD_INLINE Floats low_of(Wide v) { return _mm512_castps512_ps256(v); }
PREFOLD_INLINE Floats high_of(Wide v) { return _mm512_extractf32x8_ps(v, 1); }

#else

struct Wide {
  Floats low, high;
};

PREFOLD_INLINE Wide load_wide(const float* from) { return {load(from), load(from + kLanes)}; }

PREFOLD_INLINE void store(float* to, Wide value) {
  store(to, value.low);
  store(to + kLanes, value.high);
}

PREFOLD_INLINE Wide join(Floats low, Floats high) { return {low, high}; }

PREFOLD_INLINE Wide add(Wide a, Wide b) { return {a.low + b.low, a.high + b.high}; }

PREFOLD_INLINE Wide spread_wide(float value) { return {spread(value), spread(value)}; }

PREFOLD_INLINE Wide multiply(Wide a, float b) { return {a.low * b, a.high * b}; }

PREFOLD_INLINE Floats low_of(Wide v) { return v.low; }
PREFOLD_INLINE Floats high_of(Wide v) { return v.high; }

PREFOLD_INLINE Wide multiply_add(float a, Wide b, Wide c) {
  const Floats x = spread(a);
  return {multiply_add(x, b.low, c.low), multiply_add(x, b.high, c.high)};
}

#endif

PREFOLD_INLINE Floats multiply_add(float a, Floats b, Floats c) {
  return multiply_add(spread(a), b, c);
}

// Either of the two.
template <typename Vector> constexpr int lanes_of = sizeof(Vector) / sizeof(float);

// What one register holds: of the functions below, each number's bits are the same in both.
#if defined(PREFOLD_AVX512)
using Widest = Wide;
template <typename Vector>
using WholeOf = std::conditional_t<lanes_of<Vector> == kLanes, Ints, WideInts>;
#else
using Widest = Floats;
template <typename Vector> using WholeOf = Ints;
#endif

template <typename Vector> PREFOLD_INLINE Vector spread_as(float value) {
  return value - Vector{};
}

template <typename Vector> PREFOLD_INLINE Vector load_as(const float* from) {
  if constexpr (lanes_of<Vector> == kLanes) return load(from);
  else return load_wide(from);
}

// A NaN in `a` is passed over; it comes back through the difference with the maximum.
template <typename Vector> PREFOLD_INLINE Vector larger(Vector a, Vector b) {
  return a > b ? a : b;
}

PREFOLD_INLINE Floats as_floats(Ints bits) { return (Floats)bits; }
PREFOLD_INLINE Ints as_ints(Floats value) { return (Ints)value; }
#if defined(PREFOLD_AVX512)
PREFOLD_INLINE Wide as_floats(WideInts bits) { return (Wide)bits; }
PREFOLD_INLINE WideInts as_ints(Wide value) { return (WideInts)value; }
#endif

// The order does not matter to a maximum of numbers.
PREFOLD_INLINE float highest(Floats value) {
  value = larger(value, __builtin_shuffle(value, Ints{4, 5, 6, 7, 0, 1, 2, 3}));
  value = larger(value, __builtin_shuffle(value, Ints{2, 3, 0, 1, 6, 7, 4, 5}));
  return value[0] > value[1] ? value[0] : value[1];
}

// Lanes are added in one fixed order.
PREFOLD_INLINE float sum(Floats v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

PREFOLD_INLINE float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  uint32_t bits;
  if (magnitude >= 0x7c00u) {
    bits = 0x7f800000u | (magnitude << 13);
  } else if (magnitude >= 0x0400u) {
    bits = (magnitude << 13) + (112u << 23);
  } else {
    // Subnormal: the number of 2^-24, exactly.
    const float small = float(magnitude) * 5.9604644775390625e-8f;
    std::memcpy(&bits, &small, sizeof bits);
  }
  bits |= sign;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

// Rounds to nearest, ties to even.
PREFOLD_INLINE uint16_t float_to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  if (bits >= 0x47800000u) return uint16_t(sign | 0x7c00u);
  if (bits < 0x38800000u) {
    // Adding 0.5 leaves the number of 2^-24 in the mantissa, rounded by the addition.
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof bits);
    magnitude += 0.5f;
    std::memcpy(&bits, &magnitude, sizeof bits);
    return uint16_t(sign | (bits - 0x3f000000u));
  }
  bits += 0xfffu + ((bits >> 13) & 1u);
  return uint16_t(sign | ((bits - (112u << 23)) >> 13));
}

PREFOLD_INLINE uint16_t float_to_bfloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40u);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

PREFOLD_INLINE Floats load_bfloats(const uint16_t* from) {
  Ints bits;
  for (int i = 0; i < kLanes; ++i) bits[i] = int32_t(uint32_t(from[i]) << 16);
  return as_floats(bits);
}

PREFOLD_INLINE Floats load_halves(const uint16_t* from) {
#if defined(PREFOLD_AVX2)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  Floats out;
  for (int i = 0; i < kLanes; ++i) out[i] = half_to_float(from[i]);
  return out;
#endif
}

PREFOLD_INLINE Floats load_int8(const int8_t* from) {
#if defined(PREFOLD_AVX2)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
#else
  Floats out;
  for (int i = 0; i < kLanes; ++i) out[i] = float(from[i]);
  return out;
#endif
}

// Rounds a number of up to 2^22 to nearest, ties to even.
PREFOLD_INLINE float to_whole(float value) {
  // In the sum the last bit stands for 1.
  const float magic = 12582912.0f;
  return (value + magic) - magic;
}

// 2 ** x for x <= 127, exactly 0 below -126, NaN for NaN. Relative error 1e-7.
// Coefficients of Cephes' exp2f (S. Moshier).
template <typename Vector> PREFOLD_INLINE Vector power_of_two(Vector x) {
  // Adding 1.5 * 2^23 rounds to a whole number, which then stands in the low bits.
  const Vector magic = spread_as<Vector>(12582912.0f);
  const Vector shifted = x + magic;
  const Vector f = x - (shifted - magic);
  Vector p = spread_as<Vector>(1.535336188319500e-4f);
  p = multiply_add(p, f, spread_as<Vector>(1.339887440266574e-3f));
  p = multiply_add(p, f, spread_as<Vector>(9.618437357674640e-3f));
  p = multiply_add(p, f, spread_as<Vector>(5.550332471162809e-2f));
  p = multiply_add(p, f, spread_as<Vector>(2.402264791363012e-1f));
  p = multiply_add(p, f, spread_as<Vector>(6.931472028550421e-1f));
  p = multiply_add(p, f, spread_as<Vector>(1.0f));
  const WholeOf<Vector> exponent = (as_ints(shifted) - as_ints(magic) + 127) << 23;
  return x < spread_as<Vector>(-126.0f) ? spread_as<Vector>(0.0f) : p * as_floats(exponent);
}

// Relative error 2e-7. Coefficients of Cephes' tanhf (S. Moshier).
template <typename Vector> PREFOLD_INLINE Vector tanh(Vector x) {
  const Vector magnitude = as_floats(as_ints(x) & 0x7fffffff);
  const Vector z = x * x;
  Vector p = spread_as<Vector>(-5.70498872745e-3f);
  p = multiply_add(p, z, spread_as<Vector>(2.06390887954e-2f));
  p = multiply_add(p, z, spread_as<Vector>(-5.37397155531e-2f));
  p = multiply_add(p, z, spread_as<Vector>(1.33314422036e-1f));
  p = multiply_add(p, z, spread_as<Vector>(-3.33332819422e-1f));
  const Vector small = multiply_add(p * z, x, x);
  // Beyond 10 it is 1; a NaN fails the comparison and stays.
  const Vector capped = magnitude > spread_as<Vector>(10.0f) ? spread_as<Vector>(10.0f) : magnitude;
  const Vector e = power_of_two(capped * spread_as<Vector>(2.885390081777927f));
  const Vector large = spread_as<Vector>(1.0f) - spread_as<Vector>(2.0f) / (e + spread_as<Vector>(1.0f));
  const Vector signed_large =
      as_floats((as_ints(x) & INT32_MIN) | (as_ints(large) & 0x7fffffff));
  return magnitude < spread_as<Vector>(0.625f) ? small : signed_large;
}

#if !defined(PREFOLD_AVX512)
PREFOLD_INLINE Wide larger(Wide a, Wide b) {
  return {larger(a.low, b.low), larger(a.high, b.high)};
}

PREFOLD_INLINE Wide power_of_two(Wide x) {
  return {power_of_two(x.low), power_of_two(x.high)};
}

PREFOLD_INLINE Wide tanh(Wide x) { return {tanh(x.low), tanh(x.high)}; }
#endif

}  // namespace PREFOLD_ISA
