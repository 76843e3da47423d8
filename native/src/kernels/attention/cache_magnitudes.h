// Reads the scales of rows of an int8 KV cache: each row's largest magnitude, in the two bytes behind its numbers.
#pragma once

#include "attention/int8_cache_steps.h"
#include "cache/cache_rows.h"
#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {

constexpr std::int64_t kKeys = kLanes;  // rows of a vector

// Those of kKeys rows that are left, none below zero.
inline Lanes lanes_left(std::int64_t left) { return first_lanes(left <= 0 ? 0 : static_cast<std::size_t>(left)); }

// 64 magnitudes of rows [begin, begin + kKeys), zero from `end` on; whatever bytes they hold.
inline Floats magnitudes(const CacheHead& head, std::int64_t begin, std::int64_t end) {
  static constexpr std::int32_t kNumbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Lanes lanes = lanes_left(end - begin);
  const Ints offsets = load(kNumbers) * all(static_cast<std::int32_t>(head.row_bytes()));
  const std::int8_t* const last_words = head.row(begin) + head.head_size - 2;  // the two bytes in their upper half
  const Ints words = gathered_words(last_words, offsets, lanes);
  const Ints parts = shifted_right<24>(shifted_left<8>(words));
  const Ints exponents = min(max(shifted_right<24>(words), all(kLeastExponent)), all(kMostExponent));
  const Floats powers = bits_of(shifted_left<23>(exponents + all(127)));
  return where(lanes, number_of(parts + all(kPartsOrigin)) * powers, all(0.0f));
}

}  // namespace reader_edge::READER_EDGE_LANES
