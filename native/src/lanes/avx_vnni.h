// AVX-VNNI: AVX2, and an instruction for products of bytes. lanes.h says what each function does.
#pragma once

#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {

constexpr int kUnsignedOffset = 128;
constexpr int kRowTile = 3, kSumVectors = 2;
constexpr int kBlockTile = 3, kUnpackedTile = 3, kCodeTile = 4, kUnpackRows = 17;
constexpr int kScoreTile = 2, kWeightTile = 3;
constexpr int kWidePanels = 1, kWideTile = 4, kWideRows = 5;
constexpr int kKeyTile = 4, kValueTile = 1, kStateVectors = 2;

}  // namespace reader_edge::READER_EDGE_LANES

#include "lanes/ymm.h"

namespace reader_edge::READER_EDGE_LANES {

inline void add_dot_products(Ints& sum, Bytes a, Bytes b) {
  sum = {_mm256_dpbusd_avx_epi32(sum.low, a.low, b.low), _mm256_dpbusd_avx_epi32(sum.high, a.high, b.high)};
}
inline void add_full_range_dot_products(Ints& sum, Bytes a, Bytes b) { add_dot_products(sum, a, b); }

using BlockSums = Ints;

inline std::int32_t order_block(std::int8_t* block, std::int32_t& start) {
  const __m256i bytes = evens_first(load_ymm(block));
  store_ymm(block, bytes);
  start = -total_of(_mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(8), bytes));
  return start;
}

inline BlockSums block_start(std::int32_t start) { return all(start); }
inline void add_codes(BlockSums& sums, Bytes codes, Bytes four) { add_dot_products(sums, codes, four); }
// A block's sum fits 16 bits.
inline void add_scaled(Ints& total, BlockSums sums, Ints scales) {
  const __m256i low_words = _mm256_set1_epi32(0xffff);
  add_pairs(total, sums, {_mm256_and_si256(scales.low, low_words), _mm256_and_si256(scales.high, low_words)});
}

template <std::size_t kBits>
class CodeSums {
 public:
  void start(std::int32_t start) { sums_ = all(start); }
  void add(Bytes codes, const std::int8_t* four) { add_dot_products(sums_, codes, in_all_lanes(four)); }
  Ints total() const { return sums_; }

 private:
  Ints sums_;
};

}  // namespace reader_edge::READER_EDGE_LANES
