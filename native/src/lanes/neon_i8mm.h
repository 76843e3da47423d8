// NEON with products of matrices of bytes: one instruction multiplies two rows by two outputs, eight inputs of each.
// lanes.h says what each function does.
#pragma once

#include "lanes/neon_dot.h"

namespace reader_edge::READER_EDGE_LANES {

inline Bytes two_in_all_quarters(const void* first, const void* second) {
  const int8x8_t upper = vld1_s8(static_cast<const std::int8_t*>(first));
  const int8x16_t both = vcombine_s8(upper, vld1_s8(static_cast<const std::int8_t*>(second)));
  return {{both, both, both, both}};
}
inline void add_matrix_products(Ints& sum, Bytes rows, Bytes weights) {
  sum = each<Ints>([&](int i) { return vmmlaq_s32(sum.v[i], rows.v[i], weights.v[i]); });
}
inline void set_apart(const Ints (&sums)[2], Ints (&rows)[2]) {
  const auto wide = [&](int i) { return vreinterpretq_s64_s32(sums[i / 4].v[i % 4]); };
  rows[0] = each<Ints>([&](int i) { return vreinterpretq_s32_s64(vzip1q_s64(wide(2 * i), wide(2 * i + 1))); });
  rows[1] = each<Ints>([&](int i) { return vreinterpretq_s32_s64(vzip2q_s64(wide(2 * i), wide(2 * i + 1))); });
}

}  // namespace reader_edge::READER_EDGE_LANES
