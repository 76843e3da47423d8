// NEON with dot products: one instruction adds up the products of four bytes a lane. lanes.h says what each function does.
#pragma once

#include "lanes/neon_registers.h"

namespace reader_edge::READER_EDGE_LANES {

inline void add_full_range_dot_products(Ints& sum, Bytes a, Bytes b) {
  sum = each<Ints>([&](int i) { return vdotq_s32(sum.v[i], a.v[i], b.v[i]); });
}
inline void add_dot_products(Ints& sum, Bytes a, Bytes b) { add_full_range_dot_products(sum, a, b); }

using BlockSums = Ints;

inline BlockSums block_start(std::int32_t start) { return all(start); }
inline void add_codes(BlockSums& sums, Bytes codes, Bytes four) { add_full_range_dot_products(sums, codes, four); }
inline void add_scaled(Ints& total, BlockSums sums, Ints scales) { total = total + sums * scales; }

template <std::size_t kBits>
class CodeSums {
 public:
  void start(std::int32_t start) { sums_ = all(start); }
  void add(Bytes codes, const std::int8_t* four) { add_full_range_dot_products(sums_, codes, in_all_lanes(four)); }
  Ints total() const { return sums_; }

 private:
  Ints sums_;
};

}  // namespace reader_edge::READER_EDGE_LANES
