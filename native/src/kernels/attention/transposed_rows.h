// Rows of an int8 KV cache transposed for matrix products, and what comes before and after those: masked scores, and
// softmax weights as bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "attention/int8_cache_steps.h"
#include "kernels/attention/cache_magnitudes.h"
#include "shared_constants.h"

namespace reader_edge::READER_EDGE_LANES {

constexpr int kGroups = 2;  // of 16 keys that are transposed together
constexpr std::int64_t kTileKeys = kGroups * kKeys;
// How early rows are fetched: the cache has small pages, and finding the next one takes as long as many rows.
constexpr std::int64_t kFetchedRows = 128;

constexpr std::int64_t kValueRows = 256;  // of the cache: what is made of them stays in a core's own cache
constexpr std::int64_t kQuads = kValueRows / 4;
constexpr std::int64_t kVectors = 4;             // of 16 components each, that lie in 64 bytes of a row
static_assert(kValueRows * kSteps * kByteWeightSteps <= INT32_MAX, "a tile's sums fit into 32 bits");

// Keys [begin, begin + 16), those from `end` on as zeros, transposed, and as products take them: four components of
// each in a vector, `step` bytes apart.
inline void transpose_keys(const CacheHead& keys, std::int64_t begin, std::int64_t end, std::int8_t* transposed,
                      std::int64_t step) {
  for (std::int64_t d = 0; d < keys.head_size; d += kVectorBytes) {
    const std::int64_t left = std::min(keys.head_size - d, kVectorBytes);
    const bool is_whole = left == kVectorBytes && begin + kKeys <= end;
    Bytes rows[kKeys];
#pragma GCC unroll 16
    for (int k = 0; k < kKeys; ++k) {
      const std::int8_t* const row = keys.row(begin + k) + d;
      fetch(keys.row(begin + k + kFetchedRows) + d);
      rows[k] = is_whole ? load_bytes(row) : load_bytes(row, begin + k < end ? static_cast<std::size_t>(left) : 0);
    }
    transpose(rows);
#pragma GCC unroll 16
    for (int i = 0; i < kKeys; ++i) {
      if (4 * i < left) store_bytes(transposed + (d / 4 + i) * step, raised(rows[i]));
    }
  }
}

// Adds the mask to 16 scores from key `begin` on; those from `end` on become -infinity.
inline Floats masked(const Mask& mask, std::int64_t row, std::int64_t begin, std::int64_t end, Floats scores) {
  const Lanes lanes = lanes_left(end - begin);
  if (begin + kKeys > mask.first) {
    scores = scores + load(mask.rows + row % mask.nodes * mask.stride + begin, lanes);
  }
  return where(lanes, scores, all(-std::numeric_limits<float>::infinity()));
}

// Values [begin, begin + 256), from `end` on zero, to (kQuads, stride / 64, kVectors) vectors. Vector v of a block has
// the components 16 l + 4 v + (0, 1, 2, 3) in its quarter l.
inline void transpose_values(const CacheHead& values, std::int64_t begin, std::int64_t end, std::int8_t* transposed) {
  for (std::int64_t j = begin; j < std::min(begin + kValueRows, end); j += 4) {
    for (std::int64_t d = 0; d < values.head_size; d += kVectorBytes) {
      const auto left = static_cast<std::size_t>(std::min(values.head_size - d, kVectorBytes));
      Bytes rows[4];
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        fetch(values.row(j + k + kFetchedRows) + d);
        rows[k] = load_bytes(values.row(j + k) + d, j + k < end ? left : 0);
      }
      interleave(rows);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v, transposed += kVector) store_bytes(transposed, rows[v]);
    }
  }
}

// 16 weights to bytes: the upper ones, and the lower ones as products take them.
inline void split_steps(Ints steps, std::int8_t* high, std::int8_t* low) {
  store_low_bytes(high, shifted_right<8>(steps));
  store_low_bytes(low, steps - all(128 - kUnsignedOffset));
}

}  // namespace reader_edge::READER_EDGE_LANES
