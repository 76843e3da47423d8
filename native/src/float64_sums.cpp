// Weights are fp32 exponentials; the sums over rows are float64, whose order vanishes in the rounding to fp32.
#include <immintrin.h>

#include <algorithm>

#include "exponential.h"
#include "scratch.h"
#include "weighted_sums.h"

namespace reader_edge {
namespace {

constexpr int kDoubles = 8;
constexpr int kRowBlock = 4;

// Exponentials of scores (count, kLanes) against the rows' largest, widened; adds them to float64 sums by row.
void softmax_weights(std::int64_t count, const float* scores, __m512 top, double* weights, double* totals) {
  __m512d low = _mm512_load_pd(totals), high = _mm512_load_pd(totals + kDoubles);
  for (std::int64_t j = 0; j < count; ++j) {
    const __m512 weight = exp_of(_mm512_sub_ps(_mm512_load_ps(scores + j * kLanes), top));
    const __m512d first = _mm512_cvtps_pd(_mm512_castps512_ps256(weight));
    const __m512d second = _mm512_cvtps_pd(_mm512_extractf32x8_ps(weight, 1));
    low = _mm512_add_pd(low, first);
    high = _mm512_add_pd(high, second);
    _mm512_store_pd(weights + j * kLanes, first);
    _mm512_store_pd(weights + j * kLanes + kDoubles, second);
  }
  _mm512_store_pd(totals, low);
  _mm512_store_pd(totals + kDoubles, high);
}

// kVectors * 8 components of kRowBlock rows: adds weights (count, kLanes) times values (count, D) to sums (rows, D).
template <int kVectors>
void add_products(std::int64_t head_size, std::int64_t count, const double* weights, const float* values,
                  double* sums) {
  __m512d sum[kRowBlock][kVectors];
  for (int r = 0; r < kRowBlock; ++r)
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_load_pd(sums + r * head_size + v * kDoubles);
  for (std::int64_t j = 0; j < count; ++j) {
    __m512d value[kVectors];
    for (int v = 0; v < kVectors; ++v)
      value[v] = _mm512_cvtps_pd(_mm256_loadu_ps(values + j * head_size + v * kDoubles));
    for (int r = 0; r < kRowBlock; ++r) {
      const __m512d weight = _mm512_set1_pd(weights[j * kLanes + r]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_fmadd_pd(weight, value[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRowBlock; ++r)
    for (int v = 0; v < kVectors; ++v) _mm512_store_pd(sums + r * head_size + v * kDoubles, sum[r][v]);
}

void add_tile(std::int64_t head_size, std::int64_t rows, std::int64_t count, const double* weights,
              const float* values, double* sums) {
  constexpr int kWide = 4;
  for (std::int64_t r = 0; r < rows; r += kRowBlock) {
    std::int64_t d = 0;
    for (; d + kWide * kDoubles <= head_size; d += kWide * kDoubles)
      add_products<kWide>(head_size, count, weights + r, values + d, sums + r * head_size + d);
    for (; d < head_size; d += kDoubles)
      add_products<1>(head_size, count, weights + r, values + d, sums + r * head_size + d);
  }
}

// sums (rows, D) over their totals, rounded to fp32.
void divide(std::int64_t head_size, const double* sums, const double* totals, const Block& block) {
  for (std::int64_t r = 0; r < block.count; ++r, sums += head_size) {
    const __m512d total = _mm512_set1_pd(totals[r]);
    for (std::int64_t d = 0; d < head_size; d += kDoubles)
      _mm256_storeu_ps(block.outputs[r] + d, _mm512_cvtpd_ps(_mm512_div_pd(_mm512_load_pd(sums + d), total)));
  }
}

}  // namespace

void float64_sums(std::int64_t head_size, std::int64_t visible, const KvRows& values, Block* blocks,
                  std::int64_t num_blocks) {
  static thread_local Scratch scratch;
  const std::int64_t row_size = kLanes * head_size, block_size = row_size + kLanes;
  double* const weights = scratch.take<double>(kTile * kLanes + num_blocks * block_size);
  double* const all_sums = weights + kTile * kLanes;
  std::fill_n(all_sums, num_blocks * block_size, 0.0);
  for (std::int64_t j = 0; j < visible; j += kTile) {
    const std::int64_t count = std::min(kTile, visible - j);
    const float* const rows = values.read(head_size, j, count);
    for (std::int64_t b = 0; b < num_blocks; ++b) {
      double* const sums = all_sums + b * block_size;
      softmax_weights(count, blocks[b].scores + j * kLanes, _mm512_load_ps(blocks[b].top), weights, sums + row_size);
      add_tile(head_size, blocks[b].count, count, weights, rows, sums);
    }
  }
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    const double* const sums = all_sums + b * block_size;
    divide(head_size, sums, sums + row_size, blocks[b]);
  }
}

}  // namespace reader_edge
