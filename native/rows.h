// What a decoder layer does to rows between its matrix products.
//
// With is_narrow every result is rounded to bfloat16, and held as float32: the bits are
// those of the same steps on bfloat16 tensors.
#pragma once

#include <cstdint>

namespace prefold {

struct Norm {
  const float* weight;
  int64_t width;
  double epsilon;
};

struct RowKernel {
  const char* name;
  // The root-mean-square norm of one row; in place if `to` is `from`.
  void (*normalize)(const Norm&, const float* from, bool is_narrow, float* to);
  // Turns one head by rotary embeddings, its halves being pairs; in place if it is.
  void (*rotate)(const float* from, const float* cosine, const float* sine, int64_t size,
                 bool is_narrow, float* to);
  // to = to * by, and to = to + by.
  void (*multiply)(const float* by, int64_t count, bool is_narrow, float* to);
  void (*add)(const float* by, int64_t count, bool is_narrow, float* to);
  void (*round)(int64_t count, float* numbers);
};

extern const RowKernel kPortableRows;
extern const RowKernel kAvx2Rows;
extern const RowKernel kAvx512Rows;

}  // namespace prefold
