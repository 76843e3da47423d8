// The instruction behind it multiplies unsigned by signed bytes, four to a lane, and adds them up in 32 bits; that the
// rows are 128 too large is taken out again by the sums of the weights. Sums of 32-bit integers are exact in any order.
#include "row_product.h"

#include <immintrin.h>

#include <algorithm>

namespace reader_edge {
namespace {

constexpr std::size_t kVector = 64;
constexpr std::size_t kStepVectors = kStep / kVector;
constexpr std::size_t kLeastAhead = 16 * 1024;  // weights are fetched this many bytes early, or a block of them
constexpr float kRowFactor = static_cast<float>(1.0 / kSteps);
constexpr float kSmallestScale = 1e-9f;

// Of the 16 numbers from k on, those that are there.
inline __mmask16 lanes_left(std::size_t count, std::size_t k) {
  return count >= k + 16 ? 0xffff : k >= count ? 0 : static_cast<__mmask16>((1u << (count - k)) - 1);
}

// The instruction itself: GCC 12 keeps too many copies of the sums when it is an intrinsic.
inline void add_products(__m512i& sum, __m512i values, __m512i weights) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(values), "v"(weights));
}

// A chunk of a row in every quarter of a vector.
inline __m512i in_all_quarters(const std::uint8_t* chunk) {
  return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(chunk)));
}

// The sums of four words each: vector v, quarter q to lane 4 v + q.
inline __m512i quarter_sums(const __m512i (&vectors)[kStepVectors]) {
  const __m512i a = vectors[0], b = vectors[1], c = vectors[2], d = vectors[3];
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const __m512i sums = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  return _mm512_permutexvar_epi32(_mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), sums);
}

// What a tile reads beside its rows. ahead: weights to come, of which it fetches kFetched vectors a step.
struct Block {
  const std::int8_t* values;
  const std::int8_t* ahead;
  std::size_t num_chunks;
  __m512 scales;
  __m512i corrections;  // what the zero point of the rows added to the sums
  __mmask16 outputs;
};

// The sums of a row, without what the zero point added, times the weights' scales.
inline __m512 scaled_sum(const __m512i (&sums)[kStepVectors], const Block& block) {
  return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(quarter_sums(sums), block.corrections)), block.scales);
}

// kRows rows from `row` on, of kPlanes rows of bytes each, times a block, all sums in registers.
template <int kRows, int kPlanes, std::size_t kFetched>
void multiply_tile(const QuantizedRows& rows, std::size_t row, const Block& block, float* output, std::size_t stride) {
  constexpr int kByteRows = kRows * kPlanes;
  const std::uint8_t* a = rows.values + row * kPlanes * rows.stride;
  const std::int8_t* w = block.values;
  const std::int8_t* ahead = block.ahead;
  __m512i sums[kByteRows][kStepVectors];
#pragma GCC unroll 6
  for (int m = 0; m < kByteRows; ++m) sums[m][0] = sums[m][1] = sums[m][2] = sums[m][3] = _mm512_setzero_si512();
  for (std::size_t chunk = 0; chunk < block.num_chunks; ++chunk, w += kStep, ahead += kStep, a += kChunk) {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kFetched; ++i) _mm_prefetch(ahead + i * kVector, _MM_HINT_T1);
    const __m512i w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + kVector);
    const __m512i w2 = _mm512_load_si512(w + 2 * kVector), w3 = _mm512_load_si512(w + 3 * kVector);
#pragma GCC unroll 6
    for (int m = 0; m < kByteRows; ++m) {
      const __m512i values = in_all_quarters(a + m * rows.stride);
      add_products(sums[m][0], values, w0);
      add_products(sums[m][1], values, w1);
      add_products(sums[m][2], values, w2);
      add_products(sums[m][3], values, w3);
    }
  }
#pragma GCC unroll 6
  for (int m = 0; m < kRows; ++m) {
    __m512 product = scaled_sum(sums[m * kPlanes], block);
    if constexpr (kPlanes == 2) {
      product = _mm512_add_ps(_mm512_mul_ps(product, _mm512_set1_ps(kBase)), scaled_sum(sums[m * kPlanes + 1], block));
    }
    const __m512 result = _mm512_mul_ps(product, _mm512_set1_ps(rows.scales[row + m]));
    _mm512_mask_storeu_ps(output + (row + m) * stride, block.outputs, result);
  }
}

using Tile = void (*)(const QuantizedRows&, std::size_t, const Block&, float*, std::size_t);
template <std::size_t kFetched>
constexpr Tile kTiles[] = {multiply_tile<1, 1, kFetched>, multiply_tile<2, 1, kFetched>, multiply_tile<3, 1, kFetched>,
                           multiply_tile<4, 1, kFetched>, multiply_tile<5, 1, kFetched>, multiply_tile<6, 1, kFetched>};
template <std::size_t kFetched>
constexpr Tile kTiles16[] = {multiply_tile<1, 2, kFetched>, multiply_tile<2, 2, kFetched>,
                             multiply_tile<3, 2, kFetched>};

template <std::size_t kFetched>
const Tile* tiles_for(std::size_t num_planes) {
  return num_planes == 1 ? kTiles<kFetched> : kTiles16<kFetched>;
}

void store_bytes(__m512i integers, __mmask16 mask, std::uint8_t* values, int zero_point = kZeroPoint) {
  const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_add_epi32(integers, _mm512_set1_epi32(zero_point)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(values), _mm_maskz_mov_epi8(mask, bytes));
}

}  // namespace

float quantize_row(const float* row, std::size_t num_inputs, std::uint8_t* values, std::size_t stride) {
  __m512 largest = _mm512_setzero_ps();
  for (std::size_t k = 0; k < num_inputs; k += 16) {
    const __mmask16 mask = lanes_left(num_inputs, k);
    largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_maskz_loadu_ps(mask, row + k)));
  }
  const float scale = std::max(_mm512_reduce_max_ps(largest) * kRowFactor, kSmallestScale);
  const __m512 divisor = _mm512_set1_ps(scale);
  const __m512 low = _mm512_set1_ps(-128.0f), high = _mm512_set1_ps(127.0f);
  for (std::size_t k = 0; k < stride; k += kChunk) {
    const __mmask16 mask = lanes_left(num_inputs, k);
    const __m512 value = _mm512_div_ps(_mm512_maskz_loadu_ps(mask, row + k), divisor);
    store_bytes(_mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(value, low), high)), mask, values + k);
  }
  return scale;
}

float round_row(const float* row, float largest, std::size_t num_inputs, std::uint8_t* values, std::size_t stride,
                int zero_point) {
  const float top = std::max(largest, kSmallest);
  const __m512 steps_of_one = _mm512_set1_ps(kSteps / top);
  for (std::size_t k = 0; k < stride; k += kChunk) {
    const __mmask16 mask = lanes_left(num_inputs, k);
    const __m512i steps = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(mask, row + k), steps_of_one));
    store_bytes(steps, mask, values + k, zero_point);
  }
  return top;
}

float round_row_16(const float* row, float largest, std::size_t num_inputs, std::uint8_t* high, std::uint8_t* low,
                   std::size_t stride) {
  const float top = std::max(largest, kSmallest);
  const __m512 steps_of_one = _mm512_set1_ps(kSteps16 / top);
  for (std::size_t k = 0; k < stride; k += kChunk) {
    const __mmask16 mask = lanes_left(num_inputs, k);
    const __m512i steps = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(mask, row + k), steps_of_one));
    const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(steps, _mm512_set1_epi32(kZeroPoint)), 8);
    store_bytes(upper, mask, high + k);
    store_bytes(_mm512_sub_epi32(steps, _mm512_slli_epi32(upper, 8)), mask, low + k);
  }
  return top;
}

void multiply_block(const QuantizedRows& rows, const PackedWeight& weight, std::size_t index, const float* scales,
                    float* output) {
  const std::size_t first = index * kBlockOutputs, left = weight.num_outputs() - first;
  const __mmask16 outputs = left >= kBlockOutputs ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
  const __m512i corrections = _mm512_slli_epi32(_mm512_loadu_si512(weight.sums(index)), 7);
  static_assert(kZeroPoint == 1 << 7);
  Block block{weight.block(index), weight.block(index) + std::max(weight.block_bytes(), kLeastAhead),
              weight.num_chunks(), _mm512_maskz_loadu_ps(outputs, scales + first), corrections, outputs};
  // Tiles of equal height, or nearly so. Together they fetch as much of a later block as they read of this one, so that
  // memory stays busy while they multiply.
  const std::size_t tile_rows = kTileRows / rows.num_planes;
  const std::size_t num_tiles = (rows.count + tile_rows - 1) / tile_rows;
  const std::size_t fetched = num_tiles == 1 ? kStepVectors : num_tiles < kStepVectors ? 2 : 1;
  const Tile* const tiles = fetched == kStepVectors ? tiles_for<kStepVectors>(rows.num_planes)
                            : fetched == 2          ? tiles_for<2>(rows.num_planes)
                                                    : tiles_for<1>(rows.num_planes);
  std::size_t row = 0;
  for (std::size_t tile = 0; tile < num_tiles; ++tile) {
    const std::size_t height = (rows.count - row + num_tiles - tile - 1) / (num_tiles - tile);
    tiles[height - 1](rows, row, block, output + first, weight.num_outputs());
    if (tile + 1 < kStepVectors / fetched) block.ahead += fetched * kVector;
    row += height;
  }
}

}  // namespace reader_edge
