// Halves of bytes, from 0 to 15, are multiplied by a row and summed in 32 bits. A block's sum fits 16 bits, since what it
// begins with takes 8 from each half; so one more instruction, which multiplies 16 bits, scales it and adds it to the sum
// of the blocks. All are integers, exact in any order.
#include "block_product.h"

#include <immintrin.h>

#include "block_lanes.h"
#include "row_tiles.h"
#include "unpacked_product.h"

namespace reader_edge {
namespace {

constexpr std::size_t kMaxHeight = 10;  // of a tile: sums of more rows do not fit the registers
static_assert(kPanelVectors == 2);

// kRows rows from `row` on times a panel, with the sums of a block in registers.
template <std::size_t kRows>
void multiply_blocks(const BlockRows& rows, std::size_t row, const BlockWeight& weight, std::size_t panel,
                     const PanelOutputs& outputs) {
  constexpr std::size_t kVectors = kBlockBytes / 4;
  const __m512i low_words = _mm512_set1_epi32(0xffff);
  const std::size_t num_blocks = weight.num_blocks();
  const std::int8_t* packed = weight.values(panel);
  const std::int8_t* scales = weight.scales(panel);
  const std::int32_t* offsets = rows.offsets + row * num_blocks;
  RowPointers<kRows> values(rows.values + row * rows.stride, rows.stride);
  __m512i totals[kRows][kPanelVectors];
#pragma GCC unroll 10
  for (std::size_t m = 0; m < kRows; ++m) totals[m][0] = totals[m][1] = _mm512_setzero_si512();
  for (std::size_t block = 0; block < num_blocks; ++block) {
    __m512i sums[kRows][kPanelVectors];
#pragma GCC unroll 10
    for (std::size_t m = 0; m < kRows; ++m) {
      sums[m][0] = sums[m][1] = _mm512_set1_epi32(offsets[m * num_blocks + block]);
    }
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v, packed += kPanelVectors * kVector) {
      for (std::size_t i = 0; i < kPanelVectors; ++i) _mm_prefetch(packed + i * kVector + kWeightsAhead, _MM_HINT_T1);
      const UnpackedHalves halves(packed);
#pragma GCC unroll 2
      for (std::size_t half = 0; half < 2; ++half) {
#pragma GCC unroll 10
        for (std::size_t m = 0; m < kRows; ++m) {
          const __m512i four = values.four(m, v * 8 + half * 4);
          add_products(sums[m][0], halves.of[half][0], four);
          add_products(sums[m][1], halves.of[half][1], four);
        }
      }
    }
#pragma GCC unroll 2
    for (std::size_t i = 0; i < kPanelVectors; ++i) {
      const __m512i scale = _mm512_and_si512(block_scales(scales + i * kLanes), low_words);
#pragma GCC unroll 10
      for (std::size_t m = 0; m < kRows; ++m) totals[m][i] = _mm512_dpwssd_epi32(totals[m][i], sums[m][i], scale);
    }
    scales += kPanelOutputs;
    values.advance(kBlockInputs);
  }
#pragma GCC unroll 10
  for (std::size_t m = 0; m < kRows; ++m) outputs.store(row + m, rows.scales[row + m], totals[m]);
}

}  // namespace

std::int32_t order_blocks(std::int8_t* values, std::size_t num_blocks, std::int32_t* offsets) {
  const __m256i eights = _mm256_set1_epi8(8);
  const __m256i evens_first =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
  std::int32_t sum = 0;
  for (std::size_t block = 0; block < num_blocks; ++block, values += kBlockInputs) {
    __m256i* const place = reinterpret_cast<__m256i*>(values);
    const __m256i bytes = _mm256_loadu_si256(place);
    _mm256_storeu_si256(place, _mm256_shuffle_epi8(bytes, evens_first));
    const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), eights, bytes);
    offsets[block] = -_mm512_reduce_add_epi32(_mm512_zextsi256_si512(sums));
    sum += offsets[block];
  }
  return sum * (kUnpackedZero / 8);
}

void multiply_panels(const BlockRows& rows, const BlockWeight& weight, std::size_t first, std::size_t last,
                     const float* scales, float* output) {
  for (std::size_t panel = first; panel < last; ++panel) {
    const PanelOutputs outputs(output, weight.num_outputs(), panel, scales);
    if (rows.count >= kUnpackRows) {
      multiply_unpacked(rows, weight, panel, outputs);
      continue;
    }
    for_tiles<kMaxHeight>(rows.count, [&](std::size_t row, auto height) {
      multiply_blocks<height>(rows, row, weight, panel, outputs);
    });
  }
}

}  // namespace reader_edge
