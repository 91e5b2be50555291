// Checks of what comes from outside; one that fails is a ValueError.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>

#include "instructions.h"
#include "linear.h"

namespace prefold {

namespace nb = nanobind;

using Array = nb::ndarray<nb::ro>;
using Output = nb::ndarray<>;
using Ids = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Sizes stay far from where their products would overflow.
constexpr int64_t kLimit = int64_t(1) << 31;
constexpr int kMostThreads = 1024;

inline void require(bool holds, const char* what) {
  if (!holds) throw nb::value_error(what);
}

inline void require(bool holds, const char* name, const char* what) {
  if (!holds) throw nb::value_error((std::string(name) + what).c_str());
}

inline void require_threads(int num_threads) {
  require(num_threads >= 1 && num_threads <= kMostThreads,
          "num_threads must be from 1 to 1024");
}

// An object of a class of this module.
template <typename Kind> const Kind& cast_to(nb::handle object, const char* what) {
  require(nb::isinstance<Kind>(object) && nb::inst_ready(object), what);
  return nb::cast<const Kind&>(object);
}

template <typename Any> Element element_of(const Any& array, const char* name) {
  require(array.device_type() == nb::device::cpu::value, name, " must be on the CPU");
  const nb::dlpack::dtype dtype = array.dtype();
  if (dtype == nb::dtype<float>()) return Element::float32;
  const bool is_bfloat = dtype.bits == 16 && dtype.lanes == 1 &&
                         dtype.code == uint8_t(nb::dlpack::dtype_code::Bfloat);
  require(is_bfloat, name, " must be float32 or bfloat16");
  return Element::bfloat16;
}

template <typename Any> void require_no_gaps(const Any& array, const char* name) {
  if (array.size() == 0) return;
  int64_t expected = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    require(array.shape(i) <= 1 || array.stride(i) == expected, name,
            " must have no gaps");
    expected *= int64_t(array.shape(i));
  }
}

// Rows of `width` numbers, however many axes they are counted by.
template <typename Any> int64_t count_rows(const Any& array, int64_t width, const char* name) {
  require(array.ndim() >= 1 && int64_t(array.shape(array.ndim() - 1)) == width, name,
          " must have rows of another size");
  require_no_gaps(array, name);
  const int64_t rows = int64_t(array.size()) / width;
  require(rows < kLimit, name, " must have fewer rows");
  return rows;
}

}  // namespace prefold
