// Products of float32 matrices on a unit that multiplies bfloat16 and adds as float32.
//
// A number is the sum of three bfloat16, of its leading, middle and last bits. Of the nine
// products of two numbers' pieces the six largest are added, the small ones first; what is
// left out is about as small as a rounding of float32 (Henry, Tang & Heinecke 2019). Sums of
// a row do not depend on the other rows of a tile.
#pragma once

#include <immintrin.h>

#include <type_traits>

#include "simd.h"

namespace PREFOLD_ISA {

constexpr int kPieces = 3;
constexpr int kTileRows = 16, kTileColumns = 16;
// Numbers along the axis that is summed, of one instruction.
constexpr int kDepth = 32;
constexpr int64_t kPieceNumbers = int64_t(kTileRows) * kDepth;
// A tile's pieces one after the other.
constexpr int64_t kPiecesNumbers = kPieces * kPieceNumbers;
constexpr int64_t kTileNumbers = int64_t(kTileRows) * kTileColumns;

struct Pieces {
  WideInts of[kPieces];
};

// Exact, unless the last bits are below the smallest normal number: the first piece takes eight
// bits of 24, the second, rounded, eight of the others. What stands behind the upper half of a
// piece is not part of it.
PREFOLD_INLINE Pieces split(Wide value) {
  constexpr int32_t kUpper = int32_t(0xffff0000u);
  const Wide rest = value - as_floats(as_ints(value) & kUpper);
  const WideInts second = as_ints(rest) + 0x8000;
  return {as_ints(value), second, as_ints(rest - as_floats(second & kUpper))};
}

// A step's numbers as the unit takes them, in pairs along the summed axis: number i and number
// kDepth / 2 + i. Pieces of the smallest numbers may have bits below those of a bfloat16, which
// must not become the other number's.
PREFOLD_INLINE WideInts paired(WideInts one, WideInts other) {
  typedef uint32_t Bits __attribute__((vector_size(64)));
  constexpr int kOneOrUpperOther = 0xf8;  // a | (b & c)
  return (WideInts)_mm512_ternarylogic_epi32(__m512i(Bits(one) >> 16), (__m512i)other,
                                             _mm512_set1_epi32(int32_t(0xffff0000u)),
                                             kOneOrUpperOther);
}

// Where a tile's pieces are: the first one, and the others one after the other.
template <typename Number> struct Split {
  Number *first, *others;

  Number* piece(int i) const { return i == 0 ? first : others + (i - 1) * kPieceNumbers; }
};

// Stores pairs, in the first kCount pieces of a tile: place(i) is where those of piece i are.
template <int kCount, typename Place>
PREFOLD_INLINE void store_pairs(Wide one, Wide other, Place place) {
  const Pieces first = split(one), second = split(other);
#pragma GCC unroll 3
  for (int i = 0; i < kCount; ++i) {
    const WideInts both = paired(first.of[i], second.of[i]);
    std::memcpy(place(i), &both, sizeof both);
  }
}

// The same of a row, whose pieces are kRowPiece numbers apart.
template <int64_t kRowPiece>
PREFOLD_INLINE void store_row_pairs(Wide one, Wide other, uint16_t* to) {
  store_pairs<kPieces>(one, other, [&](int i) { return to + i * kRowPiece; });
}

// Stores numbers of a row that has `count` of them; behind the last one there are zeros.
PREFOLD_INLINE void store_row(const float* from, int64_t count, uint16_t* to) {
  float numbers[kDepth];
  if (count < kDepth) {
    std::memset(numbers, 0, sizeof numbers);
    std::memcpy(numbers, from, count * sizeof(float));
    from = numbers;
  }
  store_row_pairs<kPieceNumbers>(load_wide(from), load_wide(from + kWide), to);
}

// The intrinsics below say nothing of the memory that they read and write: what has been stored
// before must be there, and what is read after them must not have been read before.
PREFOLD_INLINE void settle_memory() { asm volatile("" ::: "memory"); }

// Tiles of R rows of tiles by P columns of tiles: two by two at most, or three by one. Sums are
// in tiles 0 to 3, rows in 4 and 5, or from 3 to 5, and columns in 6 and 7.
class TilesInUse {
 public:
  // Tiles of sums and of rows have `rows` rows.
  explicit TilesInUse(int rows) {
    struct {
      uint8_t palette = 1, start_row = 0, unused[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (int tile = 0; tile < 8; ++tile) {
      config.bytes[tile] = 64;
      config.rows[tile] = uint8_t(tile < 6 ? rows : kTileRows);
    }
    settle_memory();
    _tile_loadconfig(&config);
  }
  ~TilesInUse() { _tile_release(); }
  TilesInUse(const TilesInUse&) = delete;
  TilesInUse& operator=(const TilesInUse&) = delete;
};

// Of two columns of tiles, the second of which is not looked at if there is only one.
struct SplitColumns {
  Split<uint16_t> one, other;
};

template <int R, int P> PREFOLD_INLINE void clear_sums() {
  _tile_zero(0);
  if constexpr (P > 1 || R > 2) _tile_zero(1);
  if constexpr (R > 1) _tile_zero(2);
  if constexpr (R > 1 && P > 1) _tile_zero(3);
}

// Tiles of sums: the first one, from there to those of the next row and of the next column of
// tiles, and from one row of a tile to the next, in numbers. The last row of tiles may be
// elsewhere.
struct Sums {
  float *first, *last;
  int64_t next_row, next_column, stride;
};

template <int R, int P> PREFOLD_INLINE void load_sums(const Sums& sums) {
  const int64_t bytes = sums.stride * 4;
  settle_memory();
  if constexpr (R == 1) {
    _tile_loadd(0, sums.last, bytes);
    if constexpr (P > 1) _tile_loadd(1, sums.last + sums.next_column, bytes);
  } else if constexpr (R == 2) {
    _tile_loadd(0, sums.first, bytes);
    if constexpr (P > 1) _tile_loadd(1, sums.first + sums.next_column, bytes);
    _tile_loadd(2, sums.last, bytes);
    if constexpr (P > 1) _tile_loadd(3, sums.last + sums.next_column, bytes);
  } else {
    _tile_loadd(0, sums.first, bytes);
    _tile_loadd(1, sums.first + sums.next_row, bytes);
    _tile_loadd(2, sums.last, bytes);
  }
}

template <int R, int P> PREFOLD_INLINE void store_sums(const Sums& sums) {
  const int64_t bytes = sums.stride * 4;
  if constexpr (R == 1) {
    _tile_stored(0, sums.last, bytes);
    if constexpr (P > 1) _tile_stored(1, sums.last + sums.next_column, bytes);
  } else if constexpr (R == 2) {
    _tile_stored(0, sums.first, bytes);
    if constexpr (P > 1) _tile_stored(1, sums.first + sums.next_column, bytes);
    _tile_stored(2, sums.last, bytes);
    if constexpr (P > 1) _tile_stored(3, sums.last + sums.next_column, bytes);
  } else {
    _tile_stored(0, sums.first, bytes);
    _tile_stored(1, sums.first + sums.next_row, bytes);
    _tile_stored(2, sums.last, bytes);
  }
  settle_memory();
}

template <int kTime> using Time = std::integral_constant<int, kTime>;

// Pieces of the first tile of rows; the next tile stands `next` numbers further.
struct TiledRows {
  const uint16_t* first;
  int64_t next;
};

// Loads and multiplies tiles of a step. From one piece of the rows to the next there are
// kRowPiece numbers.
template <int R, int P, int64_t kRowPiece> struct Tiles {
  static_assert(R <= 2 ? P <= 2 : R == 3 && P == 1, "there are eight tiles");
  TiledRows rows;
  SplitColumns columns;

  __attribute__((always_inline)) void load_rows(int piece) const {
    const uint16_t* from = rows.first + piece * kRowPiece;
    if constexpr (R < 3) {
      _tile_loadd(4, from, 64);
      if constexpr (R > 1) _tile_loadd(5, from + rows.next, 64);
    } else {
      _tile_loadd(3, from, 64);
      _tile_loadd(4, from + rows.next, 64);
      _tile_loadd(5, from + 2 * rows.next, 64);
    }
  }

  // Three rows of tiles leave a tile in which another piece of their one column has place.
  template <bool kSpare = false>
  __attribute__((always_inline)) void load_columns(int piece) const {
    if constexpr (kSpare && R == 3) {
      _tile_loadd(7, columns.one.piece(piece), 64);
    } else {
      _tile_loadd(6, columns.one.piece(piece), 64);
      if constexpr (P > 1) _tile_loadd(7, columns.other.piece(piece), 64);
    }
  }

  template <bool kSpare = false> __attribute__((always_inline)) void multiply() const {
    if constexpr (R < 3) {
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (P > 1) _tile_dpbf16ps(1, 4, 7);
      if constexpr (R > 1) _tile_dpbf16ps(2, 5, 6);
      if constexpr (R > 1 && P > 1) _tile_dpbf16ps(3, 5, 7);
    } else if constexpr (kSpare) {
      _tile_dpbf16ps(0, 3, 7);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 7);
    } else {
      _tile_dpbf16ps(0, 3, 6);
      _tile_dpbf16ps(1, 4, 6);
      _tile_dpbf16ps(2, 5, 6);
    }
  }
};

// How often a step multiplies tiles of rows by tiles of columns, but for the first pieces.
constexpr int times_of(int column_pieces) { return column_pieces == kPieces ? 5 : 2; }

// Adds products of kDepth numbers to the sums, but for those of the first pieces, beside which
// they are small; calls between(i) before each multiplication.
template <int R, int P, int kColumnPieces, typename Between>
PREFOLD_INLINE void add_small(TiledRows rows, const SplitColumns& columns,
                              Between between) {
  settle_memory();
  const Tiles<R, P, kPieceNumbers> tiles{rows, columns};
  if constexpr (kColumnPieces == kPieces) {
    tiles.load_rows(0);
    tiles.load_columns(2);
    between(Time<0>{});
    tiles.multiply();
    tiles.load_columns(1);
    between(Time<1>{});
    tiles.multiply();
    tiles.load_rows(1);
    between(Time<2>{});
    tiles.multiply();
    tiles.load_columns(0);
    between(Time<3>{});
    tiles.multiply();
    tiles.load_rows(2);
    between(Time<4>{});
    tiles.multiply();
  } else {
    // As above without what a column's other pieces, being zero, would add.
    tiles.load_rows(1);
    tiles.load_columns(0);
    between(Time<0>{});
    tiles.multiply();
    tiles.load_rows(2);
    between(Time<1>{});
    tiles.multiply();
  }
}

// Adds the products of the first pieces.
template <int R, int P>
PREFOLD_INLINE void add_large(TiledRows rows, const SplitColumns& columns) {
  settle_memory();
  const Tiles<R, P, kPieceNumbers> tiles{rows, columns};
  tiles.load_columns(0);
  tiles.load_rows(0);
  tiles.multiply();
}

// Adds all products of kDepth numbers to the sums, each piece of the rows loaded once; calls
// between(i) before each multiplication but the last.
template <int R, int P, int64_t kRowPiece, typename Between>
PREFOLD_INLINE void add_all(TiledRows rows, const SplitColumns& columns, Between between) {
  settle_memory();
  const Tiles<R, P, kRowPiece> tiles{rows, columns};
  tiles.load_columns(0);
  tiles.load_rows(2);
  between(Time<0>{});
  tiles.multiply();
  tiles.load_rows(1);
  between(Time<1>{});
  tiles.multiply();
  tiles.template load_columns<true>(1);
  between(Time<2>{});
  tiles.template multiply<true>();
  tiles.load_rows(0);
  between(Time<3>{});
  tiles.template multiply<true>();
  tiles.template load_columns<true>(2);
  between(Time<4>{});
  tiles.template multiply<true>();
  if constexpr (R < 3) tiles.load_columns(0);
  tiles.multiply();
}

}  // namespace PREFOLD_ISA
