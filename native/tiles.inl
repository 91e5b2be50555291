// Where keys and values are, and tiles of them: 16 keys, or the values of 16 keys, as
// float32. Part of the kernel, compiled once for each instruction set.
#pragma once

#include "kernel.h"
#include "simd.h"

namespace PREFOLD_ISA {

using namespace prefold;

template <typename Stored> PREFOLD_INLINE float widen(Stored stored, Number number) {
  if constexpr (sizeof(Stored) == 4) return stored;
  if (number == Number::float16) return half_to_float(stored);
  const uint32_t bits = uint32_t(stored) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

PREFOLD_INLINE Floats load_widened(const uint16_t* from, Number number) {
  return number == Number::float16 ? load_halves(from) : load_bfloats(from);
}

PREFOLD_INLINE uint16_t narrow(float value, Number number) {
  return number == Number::float16 ? float_to_half(value) : float_to_bfloat(value);
}

// ---- where keys and values are -----------------------------------------------------

struct Place {
  int64_t key, value;  // numbers from the pool's first
  int64_t key_scale, value_scale;
  int32_t room;        // positions from here to the block's end
};

PREFOLD_INLINE Place find(const Layer& layer, const Member& member, int kv_head,
                          int64_t position) {
  const int64_t block = member.blocks[position / layer.block_size];
  const int32_t inner = int32_t(position % layer.block_size);
  const int64_t base = block * layer.block_numbers;
  const int64_t area = int64_t(kv_head) * layer.block_size;
  const int64_t scale = (area + inner) * int64_t(sizeof(float));  // bytes, as int8 numbers
  return {base + layer.key_offset + area * layer.key_size + inner,
          base + layer.value_offset + (area + inner) * layer.value_size,
          base + layer.key_scale_offset + scale,
          base + layer.value_scale_offset + scale,
          layer.block_size - inner};
}

template <typename Stored>
static void write_rows(const Layer& layer, const Member& member, int64_t first,
                       int64_t end, const Heads& keys, const Heads& values) {
  Stored* pool = static_cast<Stored*>(layer.pool);
  const auto put = [&](int64_t at, float value) {
    if constexpr (sizeof(Stored) == 4) pool[at] = value;
    else pool[at] = narrow(value, layer.number);
  };
  for (int head = 0; head < layer.kv_heads; ++head) {
    for (int64_t position = first; position < end; ++position) {
      const Place place = find(layer, member, head, position);
      const int64_t row = member.first_row + position - member.start;
      const float* key = keys.data + head * keys.head_stride + row * keys.row_stride;
      const float* value =
          values.data + head * values.head_stride + row * values.row_stride;
      for (int d = 0; d < layer.key_size; ++d) {
        put(place.key + int64_t(d) * layer.block_size, key[d]);
      }
      for (int d = 0; d < layer.value_size; ++d) put(place.value + d, value[d]);
    }
  }
}

// ---- numbers of one byte ----------------------------------------------------------

// What a head's numbers are divided by. An infinite one, or one that is no number, makes it
// the same, so that such a row can never pass for KV.
PREFOLD_INLINE float scale_of(const float* numbers, int size) {
  float largest = 0.0f, nothing = 0.0f;
  for (int d = 0; d < size; ++d) {
    const float magnitude = numbers[d] < 0.0f ? -numbers[d] : numbers[d];
    largest = magnitude > largest ? magnitude : largest;
    nothing += numbers[d] * 0.0f;
  }
  return largest / float(kLargestInt8) + nothing;
}

PREFOLD_INLINE int8_t to_int8(float number, float scale) {
  const float quotient = number / scale;
  if (!(quotient == quotient)) return 0;  // zero by zero, or what will not be read
  constexpr float kMost = float(kLargestInt8);
  const float below = quotient < kMost ? quotient : kMost;
  return int8_t(to_whole(below > -kMost ? below : -kMost));
}

static void write_int8(const Layer& layer, const Member& member, int64_t first, int64_t end,
                       const Heads& keys, const Heads& values) {
  int8_t* pool = static_cast<int8_t*>(layer.pool);
  const auto put = [&](const float* numbers, int size, int64_t at, int64_t stride,
                       int64_t scale_at) {
    const float scale = scale_of(numbers, size);
    std::memcpy(pool + scale_at, &scale, sizeof scale);
    for (int d = 0; d < size; ++d) pool[at + d * stride] = to_int8(numbers[d], scale);
  };
  for (int head = 0; head < layer.kv_heads; ++head) {
    for (int64_t position = first; position < end; ++position) {
      const Place place = find(layer, member, head, position);
      const int64_t row = member.first_row + position - member.start;
      put(keys.data + head * keys.head_stride + row * keys.row_stride, layer.key_size,
          place.key, layer.block_size, place.key_scale);
      put(values.data + head * values.head_stride + row * values.row_stride,
          layer.value_size, place.value, 1, place.value_scale);
    }
  }
}

static void write(const Layer& layer, const Member& member, int64_t first, int64_t end,
                  const Heads& keys, const Heads& values) {
  if (layer.number == Number::float32) {
    write_rows<float>(layer, member, first, end, keys, values);
  } else if (layer.number == Number::int8) {
    write_int8(layer, member, first, end, keys, values);
  } else {
    write_rows<uint16_t>(layer, member, first, end, keys, values);
  }
}

// ---- tiles: 16 keys, or the values of 16 keys, as float32 ---------------------------

// Whether tiles can be used where they are.
static bool has_plain_keys(const Layer& layer) {
  return layer.number == Number::float32 && layer.block_size % kTile == 0;
}

static bool has_plain_values(const Layer& layer) {
  return has_plain_keys(layer) && layer.value_size % kLanes == 0;
}

struct Tile {
  const float* data;
  int64_t stride;  // from one row to the next
};

template <typename Stored>
static void copy_keys(const Layer& layer, const Member& member, int kv_head,
                      int64_t position, int num_keys, float* to) {
  const Stored* pool = static_cast<const Stored*>(layer.pool);
  for (int done = 0; done < num_keys;) {
    const Place place = find(layer, member, kv_head, position + done);
    const int run = place.room < num_keys - done ? place.room : num_keys - done;
    for (int d = 0; d < layer.key_size; ++d) {
      const Stored* from = pool + place.key + int64_t(d) * layer.block_size;
      float* row = to + d * kTile + done;
      int i = 0;
      if constexpr (sizeof(Stored) == 2) {
        for (; i + kLanes <= run; i += kLanes) {
          store(row + i, load_widened(from + i, layer.number));
        }
      }
      for (; i < run; ++i) row[i] = widen(from[i], layer.number);
    }
    done += run;
  }
}

template <typename Stored>
static void copy_values(const Layer& layer, const Member& member, int kv_head,
                        int64_t position, int num_keys, float* to) {
  const Stored* pool = static_cast<const Stored*>(layer.pool);
  const int stride = padded_size(layer.value_size);
  for (int i = 0; i < num_keys; ++i) {
    const Stored* from = pool + find(layer, member, kv_head, position + i).value;
    float* row = to + i * stride;
    int d = 0;
    if constexpr (sizeof(Stored) == 2) {
      for (; d + kLanes <= layer.value_size; d += kLanes) {
        store(row + d, load_widened(from + d, layer.number));
      }
    }
    for (; d < layer.value_size; ++d) row[d] = widen(from[d], layer.number);
    for (; d < stride; ++d) row[d] = 0.0f;
  }
}

// A product has one rounding wherever its row or column stands in a vector.
static void copy_int8_keys(const Layer& layer, const Member& member, int kv_head,
                           int64_t position, int num_keys, float* to) {
  const int8_t* pool = static_cast<const int8_t*>(layer.pool);
  float scales[kTile];
  for (int done = 0; done < num_keys;) {
    const Place place = find(layer, member, kv_head, position + done);
    const int run = place.room < num_keys - done ? place.room : num_keys - done;
    std::memcpy(scales, pool + place.key_scale, sizeof(float) * run);
    for (int d = 0; d < layer.key_size; ++d) {
      const int8_t* from = pool + place.key + int64_t(d) * layer.block_size;
      float* row = to + d * kTile + done;
      int i = 0;
      for (; i + kLanes <= run; i += kLanes) {
        store(row + i, load_int8(from + i) * load(scales + i));
      }
      for (; i < run; ++i) row[i] = float(from[i]) * scales[i];
    }
    done += run;
  }
}

static void copy_int8_values(const Layer& layer, const Member& member, int kv_head,
                             int64_t position, int num_keys, float* to) {
  const int8_t* pool = static_cast<const int8_t*>(layer.pool);
  const int stride = padded_size(layer.value_size);
  for (int i = 0; i < num_keys; ++i) {
    const Place place = find(layer, member, kv_head, position + i);
    const int8_t* from = pool + place.value;
    float scale;
    std::memcpy(&scale, pool + place.value_scale, sizeof scale);
    float* row = to + i * stride;
    int d = 0;
    for (; d + kLanes <= layer.value_size; d += kLanes) {
      store(row + d, load_int8(from + d) * spread(scale));
    }
    for (; d < layer.value_size; ++d) row[d] = float(from[d]) * scale;
    for (; d < stride; ++d) row[d] = 0.0f;
  }
}

// Keys behind `num_keys` are any numbers: their scores are hidden later.
static Tile key_tile(const Layer& layer, const Member& member, int kv_head,
                     int64_t position, int num_keys, float* scratch) {
  if (has_plain_keys(layer)) {
    const float* pool = static_cast<const float*>(layer.pool);
    return {pool + find(layer, member, kv_head, position).key, layer.block_size};
  }
  if (layer.number == Number::float32) {
    copy_keys<float>(layer, member, kv_head, position, num_keys, scratch);
  } else if (layer.number == Number::int8) {
    copy_int8_keys(layer, member, kv_head, position, num_keys, scratch);
  } else {
    copy_keys<uint16_t>(layer, member, kv_head, position, num_keys, scratch);
  }
  return {scratch, kTile};
}

static Tile value_tile(const Layer& layer, const Member& member, int kv_head,
                       int64_t position, int num_keys, float* scratch) {
  if (has_plain_values(layer)) {
    const float* pool = static_cast<const float*>(layer.pool);
    return {pool + find(layer, member, kv_head, position).value, layer.value_size};
  }
  if (layer.number == Number::float32) {
    copy_values<float>(layer, member, kv_head, position, num_keys, scratch);
  } else if (layer.number == Number::int8) {
    copy_int8_values(layer, member, kv_head, position, num_keys, scratch);
  } else {
    copy_values<uint16_t>(layer, member, kv_head, position, num_keys, scratch);
  }
  return {scratch, padded_size(layer.value_size)};
}

}  // namespace PREFOLD_ISA
