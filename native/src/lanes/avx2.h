// AVX2 with FMA: products of bytes go by way of 16 bits, where two of them are added up before they are widened; the
// bounds of operands keep those from overflowing. lanes.h says what each function does.
#pragma once

#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {

constexpr int kUnsignedOffset = 0;
constexpr int kRowTile = 2, kSumVectors = 2;
constexpr int kBlockTile = 2, kUnpackedTile = 2, kCodeTile = 4, kUnpackRows = 17;
constexpr int kWidePanels = 1, kWideTile = 4, kWideRows = 5;
constexpr int kKeyTile = 4, kValueTile = 1, kStateVectors = 2;

}  // namespace reader_edge::READER_EDGE_LANES

#include "lanes/ymm.h"

namespace reader_edge::READER_EDGE_LANES {

inline __m256i widened_pairs(__m256i words) { return _mm256_madd_epi16(words, _mm256_set1_epi16(1)); }

// Magnitudes of one factor, unsigned, and the other with the sign of both. `b` is the one that may be -128.
inline __m256i products(__m256i a, __m256i b) {
  return widened_pairs(_mm256_maddubs_epi16(_mm256_abs_epi8(b), _mm256_sign_epi8(a, b)));
}
inline void add_dot_products(Ints& sum, Bytes a, Bytes b) {
  sum = sum + Ints{products(a.low, b.low), products(a.high, b.high)};
}

// Bytes at even places and at odd ones, as integers of 16 bits.
inline __m256i all_products(__m256i a, __m256i b) {
  const __m256i evens = _mm256_madd_epi16(_mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8),
                                          _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
  return _mm256_add_epi32(evens, _mm256_madd_epi16(_mm256_srai_epi16(a, 8), _mm256_srai_epi16(b, 8)));
}
inline void add_full_range_dot_products(Ints& sum, Bytes a, Bytes b) {
  sum = sum + Ints{all_products(a.low, b.low), all_products(a.high, b.high)};
}

// In integers of 16 bits, which a block of 4-bit codes fills to 15 * 128 * 16 at most: wide enough for a whole block. A
// start is a pair of them.
struct BlockSums {
  __m256i low, high;
};

inline std::int32_t order_block(std::int8_t* block, std::int32_t& start) {
  const __m256i bytes = evens_first(load_ymm(block));
  store_ymm(block, bytes);
  const __m256i eights = _mm256_maddubs_epi16(_mm256_set1_epi8(8), bytes);  // pairs as codes meet them
  const int first = -total_of(_mm256_srai_epi32(_mm256_slli_epi32(eights, 16), 16));
  const int second = -total_of(_mm256_srai_epi32(eights, 16));
  start = static_cast<std::int32_t>(static_cast<std::uint32_t>(second) << 16 | (static_cast<std::uint32_t>(first) & 0xffff));
  return first + second;
}

inline BlockSums block_start(std::int32_t start) { return {_mm256_set1_epi32(start), _mm256_set1_epi32(start)}; }
inline void add_codes(BlockSums& sums, Bytes codes, Bytes four) {
  sums.low = _mm256_add_epi16(sums.low, _mm256_maddubs_epi16(codes.low, four.low));
  sums.high = _mm256_add_epi16(sums.high, _mm256_maddubs_epi16(codes.high, four.high));
}
inline void add_scaled(Ints& total, BlockSums sums, Ints scales) {
  add_pairs(total, {sums.low, sums.high}, paired(scales, scales));
}

// Products are added up in 16 bits as long as they fit, then widened.
template <std::size_t kBits>
class CodeSums {
 public:
  void start(std::int32_t start) {
    sums_ = all(start);
    words_ = all_words(0);
    count_ = 0;
  }

  void add(Bytes codes, const std::int8_t* place) {
    const Bytes four = in_all_lanes(place);
    if constexpr (kBits == 8) {
      sums_ = sums_ + Ints{products(four.low, codes.low), products(four.high, codes.high)};
    } else {
      words_ = words_ + Bytes{_mm256_maddubs_epi16(codes.low, four.low), _mm256_maddubs_epi16(codes.high, four.high)};
      if (++count_ % kMost == 0) widen();
    }
  }

  Ints total() const { return sums_; }

 private:
  static constexpr std::size_t kMost = 32767 / (2 * 127 * ((1 << kBits) - 1)) >= 8   ? 8
                                       : 32767 / (2 * 127 * ((1 << kBits) - 1)) >= 4 ? 4
                                                                                     : 2;  // a block is a multiple

  void widen() {
    sums_ = sums_ + Ints{widened_pairs(words_.low), widened_pairs(words_.high)};
    words_ = all_words(0);
  }

  Ints sums_;
  Bytes words_;
  std::size_t count_;
};

}  // namespace reader_edge::READER_EDGE_LANES
