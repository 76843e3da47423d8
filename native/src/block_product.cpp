// The first instruction multiplies unsigned by signed bytes, four to a lane, and adds them up in 32 bits: halves of bytes
// from 0 to 15 by a row. A block's sum fits 16 bits, since what it begins with takes 8 from each half; so the second one,
// which multiplies 16 bits, scales it and adds it to the sum of the blocks. All are integers, exact in any order.
#include "block_product.h"

#include <immintrin.h>

#include <utility>

namespace reader_edge {
namespace {

constexpr std::size_t kVector = 64;
constexpr std::size_t kBlockVectors = kBlockBytes / 4;
constexpr std::size_t kChains = 4;  // rows whose sums grow side by side: each waits for its last instruction
constexpr std::size_t kAhead = 16 * 1024;  // weights are fetched this many bytes early

// The instruction itself, its four bytes of a row read in every lane.
inline void add_products(__m512i& sum, __m512i weights, const std::int8_t* values) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*reinterpret_cast<const std::int32_t*>(values)));
}

// A block of kCount rows, `stride` bytes and num_blocks offsets apart, times its scale, added to their totals.
template <std::size_t kCount>
[[gnu::always_inline]] inline void add_block(__m512i* totals, const __m512i (&halves)[2 * kBlockVectors], __m512i scale,
                                             const std::int8_t* values, std::size_t stride, const std::int32_t* offsets,
                                             std::size_t num_blocks) {
  __m512i sums[kCount];
#pragma GCC unroll 4
  for (std::size_t m = 0; m < kCount; ++m) sums[m] = _mm512_set1_epi32(offsets[m * num_blocks]);
#pragma GCC unroll 8
  for (std::size_t v = 0; v < 2 * kBlockVectors; ++v) {
#pragma GCC unroll 4
    for (std::size_t m = 0; m < kCount; ++m) add_products(sums[m], halves[v], values + m * stride + v * 4);
  }
#pragma GCC unroll 4
  for (std::size_t m = 0; m < kCount; ++m) totals[m] = _mm512_dpwssd_epi32(totals[m], sums[m], scale);
}

// kRows rows from `row` on times a panel, all sums in registers.
template <std::size_t kRows>
void multiply_tile(const BlockRows& rows, std::size_t row, const BlockWeight& weight, std::size_t panel, __m512 scales,
                   __mmask16 outputs, float* output) {
  const __m512i low_half = _mm512_set1_epi8(0x0f), low_words = _mm512_set1_epi32(0xffff);
  const std::size_t num_blocks = weight.num_blocks();
  const std::int8_t* w = weight.values(panel);
  const std::int8_t* block_scales = weight.scales(panel);
  const std::int8_t* values = rows.values + row * rows.stride;
  const std::int32_t* offsets = rows.offsets + row * num_blocks;
  __m512i totals[kRows];
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) totals[m] = _mm512_setzero_si512();
  for (std::size_t block = 0; block < num_blocks; ++block) {
    __m512i halves[2 * kBlockVectors];
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kBlockVectors; ++v, w += kVector) {
      _mm_prefetch(w + kAhead, _MM_HINT_T1);
      const __m512i packed = _mm512_load_si512(w);
      halves[2 * v] = _mm512_and_si512(packed, low_half);
      halves[2 * v + 1] = _mm512_and_si512(_mm512_srli_epi16(packed, 4), low_half);
    }
    const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(block_scales + block * kPanelOutputs));
    const __m512i scale = _mm512_and_si512(_mm512_cvtepi8_epi32(bytes), low_words);
    constexpr std::size_t kLast = kRows / kChains * kChains;
#pragma GCC unroll 4
    for (std::size_t m = 0; m < kLast; m += kChains) {
      add_block<kChains>(totals + m, halves, scale, values + m * rows.stride, rows.stride, offsets + m * num_blocks,
                         num_blocks);
    }
    if constexpr (kLast < kRows) {
      add_block<kRows - kLast>(totals + kLast, halves, scale, values + kLast * rows.stride, rows.stride,
                               offsets + kLast * num_blocks, num_blocks);
    }
    values += kBlockInputs;
    ++offsets;
  }
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) {
    const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(totals[m]), scales);
    const __m512 result = _mm512_mul_ps(product, _mm512_set1_ps(rows.scales[row + m]));
    _mm512_mask_storeu_ps(output + (row + m) * weight.num_outputs(), outputs, result);
  }
}

using Tile = decltype(&multiply_tile<1>);

template <class>
struct Tiles;
template <std::size_t... kBefore>
struct Tiles<std::index_sequence<kBefore...>> {
  static constexpr Tile kOf[] = {multiply_tile<kBefore + 1>...};
};

}  // namespace

void order_blocks(std::int8_t* values, std::size_t num_blocks, std::int32_t* offsets) {
  const __m256i eights = _mm256_set1_epi8(8);
  const __m256i evens_first =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
  for (std::size_t block = 0; block < num_blocks; ++block, values += kBlockInputs) {
    __m256i* const place = reinterpret_cast<__m256i*>(values);
    const __m256i bytes = _mm256_loadu_si256(place);
    _mm256_storeu_si256(place, _mm256_shuffle_epi8(bytes, evens_first));
    const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), eights, bytes);
    offsets[block] = -_mm512_reduce_add_epi32(_mm512_zextsi256_si512(sums));
  }
}

void multiply_panel(const BlockRows& rows, const BlockWeight& weight, std::size_t panel, const float* scales,
                    float* output) {
  const std::size_t first = panel * kPanelOutputs, left = weight.num_outputs() - first;
  const __mmask16 outputs = left >= kPanelOutputs ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
  const __m512 panel_scales = _mm512_maskz_loadu_ps(outputs, scales + first);
  const std::size_t num_tiles = (rows.count + kMaxTileRows - 1) / kMaxTileRows;
  std::size_t row = 0;
  for (std::size_t tile = 0; tile < num_tiles; ++tile) {  // of equal height, or nearly so
    const std::size_t height = (rows.count - row + num_tiles - tile - 1) / (num_tiles - tile);
    Tiles<std::make_index_sequence<kMaxTileRows>>::kOf[height - 1](rows, row, weight, panel, panel_scales, outputs, output + first);
    row += height;
  }
}

}  // namespace reader_edge
