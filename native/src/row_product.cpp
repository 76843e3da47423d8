// The instruction behind it multiplies unsigned by signed bytes, four to a lane, and adds them up in 32 bits; that the
// rows are 128 too large is taken out again by the sums of the weights. Sums of 32-bit integers are exact in any order.
#include "row_product.h"

#include <immintrin.h>

#include <algorithm>

namespace reader_edge {
namespace {

constexpr std::size_t kVector = 64;
constexpr int kZeroPoint = 128;
constexpr std::size_t kLeastAhead = 16 * 1024;  // weights are fetched this many bytes early, or a tile of them
constexpr float kRowFactor = static_cast<float>(1.0 / 127.0);
constexpr float kSmallestScale = 1e-9f;

// Four vectors to one: each of its four words is the sum of four words of one of them.
inline __m512i word_sums(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

inline __m128i quarter_sums(__m512i a) {
  const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

// The instruction itself: GCC 12 keeps too many copies of the sums when it is an intrinsic.
inline void add_products(__m512i& sum, __m512i values, __m512i weights) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(values), "v"(weights));
}

// What of four outputs' sums the zero point of the rows made.
inline __m128i corrections(const WeightRows& weight, std::size_t j) {
  return _mm_slli_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weight.sums + j)), 7);
}

// One row times outputs [j, j + 4), one after the other: reading memory in order is what lets a core read it fastest.
void multiply_single_row(const QuantizedRows& rows, const WeightRows& weight, std::size_t j, float* output) {
  const std::size_t num_inputs = weight.num_inputs, whole = num_inputs / kVector * kVector;
  const std::uint8_t* a = rows.values;
  __m512i sums[kTileOutputs];
#pragma GCC unroll 4
  for (std::size_t n = 0; n < kTileOutputs; ++n) {
    const std::int8_t* w = weight.values + (j + n) * num_inputs;
    __m512i sum = _mm512_setzero_si512();
    for (std::size_t k = 0; k < whole; k += kVector) {
      add_products(sum, _mm512_load_si512(a + k), _mm512_loadu_si512(w + k));
    }
    if (whole < num_inputs) {
      const __mmask64 mask = (1ull << (num_inputs - whole)) - 1;
      add_products(sum, _mm512_load_si512(a + whole), _mm512_maskz_loadu_epi8(mask, w + whole));
    }
    sums[n] = sum;
  }
  const __m128i products = quarter_sums(word_sums(sums[0], sums[1], sums[2], sums[3]));
  const __m128 sum = _mm_cvtepi32_ps(_mm_sub_epi32(products, corrections(weight, j)));
  const __m128 scaled = _mm_mul_ps(sum, _mm_loadu_ps(weight.scales + j));
  _mm_storeu_ps(output + j, _mm_mul_ps(scaled, _mm_set1_ps(rows.scales[0])));
}

// Four outputs of the rows of a group that there are: one row in each quarter of a vector.
inline void store_group(const __m512i sums[kTileOutputs], const QuantizedRows& rows, std::size_t row,
                        const WeightRows& weight, std::size_t j, float* output, std::size_t stride) {
  const __m512i products = word_sums(sums[0], sums[1], sums[2], sums[3]);
  const __m512 sum = _mm512_cvtepi32_ps(_mm512_sub_epi32(products, _mm512_broadcast_i32x4(corrections(weight, j))));
  const __m512 scaled = _mm512_mul_ps(sum, _mm512_broadcast_f32x4(_mm_loadu_ps(weight.scales + j)));
  const __m512i quarters = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  const __m512 row_scales = _mm512_castps128_ps512(_mm_loadu_ps(rows.scales + row));
  const __m512 result = _mm512_mul_ps(scaled, _mm512_permutexvar_ps(quarters, row_scales));
  float* const first = output + row * stride + j;
  const std::size_t count = rows.count - row;
  _mm_storeu_ps(first, _mm512_castps512_ps128(result));
  if (count > 1) _mm_storeu_ps(first + stride, _mm512_extractf32x4_ps(result, 1));
  if (count > 2) _mm_storeu_ps(first + 2 * stride, _mm512_extractf32x4_ps(result, 2));
  if (count > 3) _mm_storeu_ps(first + 3 * stride, _mm512_extractf32x4_ps(result, 3));
}

// The kGroups groups from row `row` on times outputs [j, j + 4), all sums in registers.
template <int kGroups>
void multiply_tile(const QuantizedRows& rows, std::size_t row, const WeightRows& weight, std::size_t j, float* output,
                   std::size_t stride) {
  const std::size_t num_inputs = weight.num_inputs, whole = num_inputs / kChunk * kChunk;
  const std::size_t group_bytes = kGroupRows * rows.stride;
  const std::int8_t* w = weight.values + j * num_inputs;
  const std::int8_t* ahead = w + std::max(kTileOutputs * num_inputs, kLeastAhead);
  const std::uint8_t* a = rows.values + row * rows.stride;
  __m512i sums[kGroups][kTileOutputs];
#pragma GCC unroll 6
  for (int m = 0; m < kGroups; ++m) sums[m][0] = sums[m][1] = sums[m][2] = sums[m][3] = _mm512_setzero_si512();
  // One chunk of each output, to all rows of a group.
  const auto step = [&](__m128i w0, __m128i w1, __m128i w2, __m128i w3) __attribute__((always_inline)) {
    const __m512i all[] = {_mm512_broadcast_i32x4(w0), _mm512_broadcast_i32x4(w1), _mm512_broadcast_i32x4(w2),
                           _mm512_broadcast_i32x4(w3)};
#pragma GCC unroll 6
    for (int m = 0; m < kGroups; ++m) {
      const __m512i values = _mm512_load_si512(a + m * group_bytes);
      add_products(sums[m][0], values, all[0]);
      add_products(sums[m][1], values, all[1]);
      add_products(sums[m][2], values, all[2]);
      add_products(sums[m][3], values, all[3]);
    }
  };
  const auto chunk = [&](std::size_t n) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(w + n * num_inputs));
  };
  for (std::size_t k = 0; k < whole; k += kChunk, w += kChunk, a += kVector, ahead += kVector) {
    _mm_prefetch(ahead, _MM_HINT_T1);  // in the order of memory, unlike the reads themselves
    step(chunk(0), chunk(1), chunk(2), chunk(3));
  }
  if (whole < num_inputs) {
    const __mmask16 mask = static_cast<__mmask16>((1u << (num_inputs - whole)) - 1);
    const auto tail = [&](std::size_t n) { return _mm_maskz_loadu_epi8(mask, w + n * num_inputs); };
    step(tail(0), tail(1), tail(2), tail(3));
  }
#pragma GCC unroll 6
  for (int m = 0; m < kGroups; ++m) store_group(sums[m], rows, row + m * kGroupRows, weight, j, output, stride);
}

void multiply_one(const QuantizedRows& rows, const WeightRows& weight, std::size_t j, float* output,
                  std::size_t stride) {
  const std::int8_t* w = weight.values + j * weight.num_inputs;
  for (std::size_t row = 0; row < rows.count; ++row) {
    const std::uint8_t* a = rows.values + rows.start_of(row);
    std::int32_t sum = 0;
    for (std::size_t k = 0; k < weight.num_inputs; ++k) sum += a[k / kChunk * rows.step + k % kChunk] * w[k];
    sum -= kZeroPoint * weight.sums[j];
    output[row * stride + j] = static_cast<float>(sum) * weight.scales[j] * rows.scales[row];
  }
}

using Tile = void (*)(const QuantizedRows&, std::size_t, const WeightRows&, std::size_t, float*, std::size_t);
constexpr Tile kTiles[kTileRows / kGroupRows] = {multiply_tile<1>, multiply_tile<2>, multiply_tile<3>,
                                                 multiply_tile<4>, multiply_tile<5>, multiply_tile<6>};

}  // namespace

float quantize_row(const float* row, std::size_t num_inputs, std::uint8_t* values, std::size_t stride,
                   std::size_t step) {
  __m512 largest = _mm512_setzero_ps();
  for (std::size_t k = 0; k < num_inputs; k += 16) {
    const __mmask16 mask = num_inputs - k >= 16 ? 0xffff : static_cast<__mmask16>((1u << (num_inputs - k)) - 1);
    largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_maskz_loadu_ps(mask, row + k)));
  }
  const float scale = std::max(_mm512_reduce_max_ps(largest) * kRowFactor, kSmallestScale);
  const __m512 divisor = _mm512_set1_ps(scale);
  const __m512 low = _mm512_set1_ps(-128.0f), high = _mm512_set1_ps(127.0f);
  const __m512i zero_point = _mm512_set1_epi32(kZeroPoint);
  for (std::size_t k = 0; k < stride; k += kChunk, values += step) {
    const std::size_t left = num_inputs > k ? num_inputs - k : 0;
    const __mmask16 mask = left >= 16 ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
    const __m512 value = _mm512_div_ps(_mm512_maskz_loadu_ps(mask, row + k), divisor);
    const __m512i rounded = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(value, low), high));
    const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_add_epi32(rounded, zero_point));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(values), _mm_maskz_mov_epi8(mask, bytes));
  }
  return scale;
}

std::int32_t row_sum(const std::int8_t* values, std::size_t count) {
  std::int32_t sum = 0;
  for (std::size_t k = 0; k < count; ++k) sum += values[k];
  return sum;
}

void multiply_rows(const QuantizedRows& rows, const WeightRows& weight, float* output, std::size_t stride) {
  const std::size_t num_groups = (rows.count + kGroupRows - 1) / kGroupRows;
  const std::size_t num_tiles = (rows.count + kTileRows - 1) / kTileRows;
  std::size_t j = weight.first;
  for (; j + kTileOutputs <= weight.last; j += kTileOutputs) {
    if (rows.step == kChunk) {
      multiply_single_row(rows, weight, j, output);
      continue;
    }
    std::size_t group = 0;
    for (std::size_t tile = 0; tile < num_tiles; ++tile) {  // tiles of equal height, or nearly so
      const std::size_t height = (num_groups - group + num_tiles - tile - 1) / (num_tiles - tile);
      kTiles[height - 1](rows, group * kGroupRows, weight, j, output, stride);
      group += height;
    }
  }
  for (; j < weight.last; ++j) multiply_one(rows, weight, j, output, stride);
}

}  // namespace reader_edge
