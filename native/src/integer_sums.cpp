// Values are integers in steps of their row's largest, softmax weights integers in steps of their query's largest, the
// steps of the values in them. Then a sum over the cache's rows is a sum of integers, the same in any order.
#include <immintrin.h>

#include <algorithm>

#include "exponential.h"
#include "scratch.h"
#include "shared_constants.h"
#include "weighted_sums.h"

namespace reader_edge {
namespace {

constexpr float kTotalSteps = 4194304.0f;  // of a weight of one in the divisor
constexpr double kTotalUnit = 1.0 / 4194304.0;
constexpr double kUnit = 1.0 / (double{kWeightSteps} * kValueSteps);
static_assert(kTile * kValueSteps * kWeightSteps <= INT32_MAX && kTile * 4194304 <= INT32_MAX, "a tile's sums fit into 32 bits");

constexpr int kDoubles = 8;
constexpr int kRowBlock = 4;
constexpr int kPairs = kTile / 2;

__mmask16 lanes_left(std::int64_t left) { return left >= kLanes ? 0xffff : static_cast<__mmask16>((1u << left) - 1); }

std::int64_t padded(std::int64_t head_size) { return (head_size + kLanes - 1) / kLanes * kLanes; }

// Two rows of integers, side by side in each lane as 16 bits.
__m512i paired(__m512i first, __m512i second) {
  return _mm512_mask_blend_epi16(0xaaaaaaaau, first, _mm512_slli_epi32(second, 16));
}

// The largest magnitude of each of `count` rows (count, D), or kSmallest.
void find_magnitudes(std::int64_t head_size, std::int64_t count, const float* values, float* magnitudes) {
  for (std::int64_t j = 0; j < count; ++j) {
    __m512 largest = _mm512_set1_ps(kSmallest);
    for (std::int64_t d = 0; d < head_size; d += kLanes) {
      _mm_prefetch(values + (j + kTile) * head_size + d, _MM_HINT_T0);  // of the next tile
      const __m512 value = _mm512_maskz_loadu_ps(lanes_left(head_size - d), values + j * head_size + d);
      largest = _mm512_max_ps(largest, _mm512_abs_ps(value));
    }
    magnitudes[j] = _mm512_reduce_max_ps(largest);
  }
}

// A tile of values (count, D) as pairs of integers (kPairs, padded D); what is missing is zero.
void quantize_values(std::int64_t head_size, std::int64_t count, const float* values, const float* magnitudes,
                     std::int32_t* pairs) {
  alignas(64) float factors[kTile];
  for (std::int64_t j = 0; j < kTile; j += kLanes) {
    _mm512_store_ps(factors + j, _mm512_div_ps(_mm512_set1_ps(kValueSteps), _mm512_load_ps(magnitudes + j)));
  }
  const std::int64_t stride = padded(head_size);
  for (std::int64_t j = 0; j < count; j += 2) {
    const __m512 first = _mm512_set1_ps(factors[j]), second = _mm512_set1_ps(factors[j + 1]);
    const float* const row = values + j * head_size;
    for (std::int64_t d = 0; d < head_size; d += kLanes) {
      const __mmask16 lanes = lanes_left(head_size - d), other = j + 1 < count ? lanes : __mmask16{0};
      const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, row + d), first));
      const __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(other, row + head_size + d), second));
      _mm512_store_si512(pairs + j / 2 * stride + d, paired(low, high));
    }
  }
}

void add_widened(__m512i sums, double* totals) {
  const __m512d low = _mm512_cvtepi32_pd(_mm512_castsi512_si256(sums));
  const __m512d high = _mm512_cvtepi32_pd(_mm512_extracti32x8_epi32(sums, 1));
  _mm512_store_pd(totals, _mm512_add_pd(_mm512_load_pd(totals), low));
  _mm512_store_pd(totals + kDoubles, _mm512_add_pd(_mm512_load_pd(totals + kDoubles), high));
}

// A tile's scores to exponentials times their values' magnitudes, in place; returns the larger of `top` and them.
__m512 weigh(std::int64_t count, const float* magnitudes, const Block& block, float* scores, __m512 top,
             double* totals) {
  __m512i sums = _mm512_setzero_si512();
  const __m512 top_score = _mm512_load_ps(block.top);
  for (std::int64_t j = 0; j < count; ++j, scores += kLanes) {
    const __m512 weight = exp_of(_mm512_sub_ps(_mm512_load_ps(scores), top_score));
    sums = _mm512_add_epi32(sums, _mm512_cvtps_epi32(_mm512_mul_ps(weight, _mm512_set1_ps(kTotalSteps))));
    const __m512 scaled = _mm512_mul_ps(weight, _mm512_set1_ps(magnitudes[j]));
    _mm512_store_ps(scores, scaled);
    top = _mm512_max_ps(top, scaled);
  }
  add_widened(sums, totals);
  return top;
}

// A tile of weights (count, kLanes) as pairs of integers (kPairs, kLanes).
void quantize_weights(std::int64_t count, const float* weights, __m512 factor, std::int32_t* pairs) {
  for (std::int64_t j = 0; j < count; j += 2, weights += 2 * kLanes, pairs += kLanes) {
    const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(weights), factor));
    const __m512i high = j + 1 < count ? _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(weights + kLanes), factor))
                                       : _mm512_setzero_si512();
    _mm512_store_si512(pairs, paired(low, high));
  }
}

// kVectors * 16 components of kRowBlock rows: adds weights times values, both in pairs, to float64 sums (kLanes, D).
template <int kVectors>
void add_products(std::int64_t stride, std::int64_t num_pairs, const std::int32_t* weights, const std::int32_t* values,
                  double* sums) {
  __m512i sum[kRowBlock][kVectors];
  for (auto& row : sum)
    for (auto& each : row) each = _mm512_setzero_si512();
  for (std::int64_t j = 0; j < num_pairs; ++j) {
    __m512i value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = _mm512_load_si512(values + j * stride + v * kLanes);
    for (int r = 0; r < kRowBlock; ++r) {
      const __m512i weight = _mm512_set1_epi32(weights[j * kLanes + r]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_dpwssd_epi32(sum[r][v], weight, value[v]);
    }
  }
  for (int r = 0; r < kRowBlock; ++r)
    for (int v = 0; v < kVectors; ++v) add_widened(sum[r][v], sums + r * stride + v * kLanes);
}

void add_tile(std::int64_t stride, std::int64_t rows, std::int64_t num_pairs, const std::int32_t* weights,
              const std::int32_t* values, double* sums) {
  constexpr int kWide = 4;
  for (std::int64_t r = 0; r < rows; r += kRowBlock) {
    std::int64_t d = 0;
    for (; d + kWide * kLanes <= stride; d += kWide * kLanes)
      add_products<kWide>(stride, num_pairs, weights + r, values + d, sums + r * stride + d);
    for (; d < stride; d += kLanes)
      add_products<1>(stride, num_pairs, weights + r, values + d, sums + r * stride + d);
  }
}

// Exact sums (rows, D) in the unit of their row, rounded to fp32.
void scale_sums(std::int64_t head_size, const double* sums, __m512 top, const double* totals, const Block& block) {
  alignas(64) float tops[kLanes];
  _mm512_store_ps(tops, top);
  for (std::int64_t r = 0; r < block.count; ++r, sums += padded(head_size)) {
    const __m512d unit = _mm512_set1_pd(static_cast<double>(tops[r]) / (totals[r] * kTotalUnit) * kUnit);
    for (std::int64_t d = 0; d < head_size; d += kDoubles)
      _mm256_storeu_ps(block.outputs[r] + d, _mm512_cvtpd_ps(_mm512_mul_pd(_mm512_load_pd(sums + d), unit)));
  }
}

}  // namespace

void integer_sums(std::int64_t head_size, std::int64_t visible, const KvRows& values, Block* blocks,
                  std::int64_t num_blocks) {
  static thread_local Scratch integers;
  static thread_local Scratch doubles;
  static thread_local Scratch floats;
  const std::int64_t num_tiles = (visible + kTile - 1) / kTile, stride = padded(head_size);
  const std::int64_t row_size = kLanes * stride, block_size = row_size + kLanes;
  std::int32_t* const value_pairs = integers.take<std::int32_t>(num_tiles * kPairs * stride + kPairs * kLanes);
  std::int32_t* const weight_pairs = value_pairs + num_tiles * kPairs * stride;
  float* const magnitudes = floats.take<float>(num_tiles * kTile);
  double* const all_sums = doubles.take<double>(num_blocks * block_size);
  std::fill_n(all_sums, num_blocks * block_size, 0.0);
  std::fill(magnitudes + visible, magnitudes + num_tiles * kTile, kSmallest);

  __m512 tops[kMaxBlocks];
  std::fill_n(tops, num_blocks, _mm512_set1_ps(kSmallest));
  for (std::int64_t j = 0; j < visible; j += kTile) {
    const std::int64_t count = std::min(kTile, visible - j);
    const float* const rows = values.read(head_size, j, count);
    find_magnitudes(head_size, count, rows, magnitudes + j);
    quantize_values(head_size, count, rows, magnitudes + j, value_pairs + j / 2 * stride);
    for (std::int64_t b = 0; b < num_blocks; ++b)
      tops[b] = weigh(count, magnitudes + j, blocks[b], blocks[b].scores + j * kLanes, tops[b],
                      all_sums + b * block_size + row_size);
  }
  for (std::int64_t j = 0; j < visible; j += kTile) {
    const std::int64_t count = std::min(kTile, visible - j);
    for (std::int64_t b = 0; b < num_blocks; ++b) {
      const __m512 factor = _mm512_div_ps(_mm512_set1_ps(kWeightSteps), tops[b]);
      quantize_weights(count, blocks[b].scores + j * kLanes, factor, weight_pairs);
      add_tile(stride, blocks[b].count, (count + 1) / 2, weight_pairs, value_pairs + j / 2 * stride,
               all_sums + b * block_size);
    }
  }
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    const double* const sums = all_sums + b * block_size;
    scale_sums(head_size, sums, tops[b], sums + row_size, blocks[b]);
  }
}

}  // namespace reader_edge
