// NEON as every ARMv8 processor has it: products of bytes are of 16 bits, which are added in pairs. lanes.h says what each
// function does.
#pragma once

#include "lanes/neon_registers.h"

namespace reader_edge::READER_EDGE_LANES {

// Two products each, of one quarter: they fit 16 bits but where both are of -128 times -128.
inline int16x8_t pair_sums(int8x16_t a, int8x16_t b) {
  return vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b));
}

inline void add_dot_products(Ints& sum, Bytes a, Bytes b) {
  sum = each<Ints>([&](int i) { return vpadalq_s16(sum.v[i], pair_sums(a.v[i], b.v[i])); });
}
inline void add_full_range_dot_products(Ints& sum, Bytes a, Bytes b) {
  sum = each<Ints>([&](int i) {
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a.v[i]), vget_low_s8(b.v[i])));
    return vaddq_s32(sum.v[i], vpaddq_s32(low, vpaddlq_s16(vmull_high_s8(a.v[i], b.v[i]))));
  });
}

// Sums of 16 products of a code and a byte fit 16 bits; a lane has two of them.
struct BlockSums {
  int16x8_t v[4];
  std::int32_t start;
};

inline BlockSums block_start(std::int32_t start) {
  const int16x8_t zero = vdupq_n_s16(0);
  return {{zero, zero, zero, zero}, start};
}
inline void add_codes(BlockSums& sums, Bytes codes, Bytes four) {
  for (int i = 0; i < 4; ++i) sums.v[i] = vaddq_s16(sums.v[i], pair_sums(codes.v[i], four.v[i]));
}
inline void add_scaled(Ints& total, BlockSums sums, Ints scales) {
  total = each<Ints>([&](int i) {
    return vmlaq_s32(total.v[i], vpadalq_s16(vdupq_n_s32(sums.start), sums.v[i]), scales.v[i]);
  });
}

template <std::size_t kBits>
class CodeSums {
 public:
  void start(std::int32_t start) { sums_ = all(start); }
  void add(Bytes codes, const std::int8_t* four) { add_dot_products(sums_, in_all_lanes(four), codes); }
  Ints total() const { return sums_; }

 private:
  Ints sums_;
};

}  // namespace reader_edge::READER_EDGE_LANES
