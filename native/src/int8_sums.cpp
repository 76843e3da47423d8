// Softmax weights are integers in steps of their query's largest, the steps of the values in them. Four rows of values
// are turned into lanes of four bytes, signed, once for all query rows; weights are two unsigned bytes.
#include <immintrin.h>

#include <algorithm>

#include "cache_magnitudes.h"
#include "exponential.h"
#include "int8_rows.h"
#include "scratch.h"
#include "shared_constants.h"

namespace reader_edge {
namespace {

constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kTileRows = 256;  // of the cache: what is made of them stays in a core's own cache
constexpr std::int64_t kQuads = kTileRows / 4;
constexpr std::int64_t kTotalRun = 256 * kLanes;  // weights that are summed before they are widened
constexpr int kVectors = 4;                       // of 16 components each, that lie in 64 bytes of a row
constexpr int kRowBlock = 3;
constexpr float kTotalSteps = 4194304.0f;  // of a weight of one in the divisor
constexpr double kTotalUnit = 1.0 / 4194304.0;
constexpr double kUnit = 1.0 / (double{kByteWeightSteps} * kRowSteps);
static_assert(kTileRows * kSteps * kByteWeightSteps <= INT32_MAX, "a tile's sums fit into 32 bits");
static_assert(kTotalRun / kLanes * 4194304 <= INT32_MAX, "a run's totals fit into 32 bits");

inline void add_products(__m512i& sum, __m512i weights, __m512i values) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(values));
}

inline __m512i in_all_lanes(const std::uint8_t* four) {
  std::int32_t word;
  __builtin_memcpy(&word, four, sizeof word);
  return _mm512_set1_epi32(word);
}

// Values [begin, begin + 256), from `end` on zero, to (kQuads, stride / 64, kVectors) vectors. Vector v of a block has
// the components 16 l + 4 v + (0, 1, 2, 3) in its quarter l.
void turn_values(const CacheHead& values, std::int64_t begin, std::int64_t end, __m512i* turned) {
  for (std::int64_t j = begin; j < std::min(begin + kTileRows, end); j += 4) {
    for (std::int64_t d = 0; d < values.head_size; d += kVectorBytes, turned += kVectors) {
      const std::int64_t left = std::min(values.head_size - d, kVectorBytes);
      const __mmask64 mask = ~std::uint64_t{0} >> (kVectorBytes - left);
      __m512i rows[4];
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        _mm_prefetch(values.row(j + k + 64) + d, _MM_HINT_T0);
        rows[k] = _mm512_maskz_loadu_epi8(j + k < end ? mask : 0, values.row(j + k) + d);
      }
      const __m512i a = _mm512_unpacklo_epi8(rows[0], rows[1]), b = _mm512_unpackhi_epi8(rows[0], rows[1]);
      const __m512i c = _mm512_unpacklo_epi8(rows[2], rows[3]), e = _mm512_unpackhi_epi8(rows[2], rows[3]);
      _mm512_store_si512(turned, _mm512_unpacklo_epi16(a, c));
      _mm512_store_si512(turned + 1, _mm512_unpackhi_epi16(a, c));
      _mm512_store_si512(turned + 2, _mm512_unpacklo_epi16(b, e));
      _mm512_store_si512(turned + 3, _mm512_unpackhi_epi16(b, e));
    }
  }
}

// Weights (count,), a multiple of 16, to bytes.
void split_weights(const float* weights, std::int64_t count, __m512 factor, std::uint8_t* high, std::uint8_t* low) {
  for (std::int64_t j = 0; j < count; j += kLanes) {
    const __m512i steps = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(weights + j), factor));
    _mm_store_si128(reinterpret_cast<__m128i*>(high + j), _mm512_cvtepi32_epi8(_mm512_srli_epi32(steps, 8)));
    _mm_store_si128(reinterpret_cast<__m128i*>(low + j), _mm512_cvtepi32_epi8(steps));
  }
}

void add_widened(__m512i sums, double* totals) {
  const __m512d low = _mm512_cvtepi32_pd(_mm512_castsi512_si256(sums));
  const __m512d high = _mm512_cvtepi32_pd(_mm512_extracti32x8_epi32(sums, 1));
  _mm512_store_pd(totals, _mm512_add_pd(_mm512_load_pd(totals), low));
  _mm512_store_pd(totals + 8, _mm512_add_pd(_mm512_load_pd(totals + 8), high));
}

// kRows rows of weights (kRows, 2, kTileRows) times num_quads quads of a block of 64 components, `step` vectors apart.
template <int kRows>
void sum_block(const std::uint8_t* weights, const __m512i* values, std::int64_t num_quads, std::int64_t step,
               double* sums, std::int64_t stride) {
  __m512i sum[kRows][2][kVectors];
#pragma GCC unroll 3
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][0][v] = sum[r][1][v] = _mm512_setzero_si512();
  }
  for (std::int64_t q = 0; q < num_quads; ++q, values += step, weights += 4) {
    const __m512i v0 = _mm512_load_si512(values), v1 = _mm512_load_si512(values + 1);
    const __m512i v2 = _mm512_load_si512(values + 2), v3 = _mm512_load_si512(values + 3);
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int p = 0; p < 2; ++p) {
        const __m512i weight = in_all_lanes(weights + (r * 2 + p) * kTileRows);
        add_products(sum[r][p][0], weight, v0);
        add_products(sum[r][p][1], weight, v1);
        add_products(sum[r][p][2], weight, v2);
        add_products(sum[r][p][3], weight, v3);
      }
    }
  }
#pragma GCC unroll 3
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __m512i both = _mm512_add_epi32(_mm512_slli_epi32(sum[r][0][v], 8), sum[r][1][v]);
      add_widened(both, sums + r * stride + v * kLanes);
    }
  }
}

using SumBlock = void (*)(const std::uint8_t*, const __m512i*, std::int64_t, std::int64_t, double*, std::int64_t);
constexpr SumBlock kSumBlocks[] = {sum_block<1>, sum_block<2>, sum_block<3>};

}  // namespace

void weigh_run(const CacheHead& values, const QueryRows& rows, Run run, const float* tops, float* weight_tops,
               double* totals) {
  static thread_local Scratch kept;
  float* const magnitudes_of = kept.take<float>(kTotalRun);
  for (std::int64_t begin = run.begin; begin < run.end; begin += kTotalRun) {
    const std::int64_t count = std::min(run.end - begin, kTotalRun);
    for (std::int64_t j = 0; j < count; j += kLanes)
      _mm512_store_ps(magnitudes_of + j, magnitudes(values, begin + j, run.end));
    for (std::int64_t r = 0; r < rows.count; ++r) {
      float* const scores = rows.scores + r * rows.stride + begin;
      const __m512 top = _mm512_set1_ps(tops[r]);
      __m512i total = _mm512_setzero_si512();
      __m512 largest = _mm512_set1_ps(weight_tops[r]);
      for (std::int64_t j = 0; j < count; j += kLanes) {
        const __m512 weight = exp_of(_mm512_sub_ps(_mm512_load_ps(scores + j), top));
        total = _mm512_add_epi32(total, _mm512_cvtps_epi32(_mm512_mul_ps(weight, _mm512_set1_ps(kTotalSteps))));
        const __m512 scaled = _mm512_mul_ps(weight, _mm512_load_ps(magnitudes_of + j));
        _mm512_store_ps(scores + j, scaled);
        largest = _mm512_max_ps(largest, scaled);
      }
      weight_tops[r] = _mm512_reduce_max_ps(largest);
      alignas(64) double wide[kLanes] = {};
      add_widened(total, wide);
      totals[r] += _mm512_reduce_add_pd(_mm512_add_pd(_mm512_load_pd(wide), _mm512_load_pd(wide + 8)));
    }
  }
}

void sum_run(const CacheHead& values, const QueryRows& rows, Run run, const float* weight_tops, double* sums) {
  static thread_local Scratch kept_values;
  static thread_local Scratch kept_weights;
  const std::int64_t stride = sum_size(values.head_size), step = stride / kLanes;
  auto* const turned = reinterpret_cast<__m512i*>(kept_values.take<std::int32_t>(kQuads * step * kLanes));
  std::uint8_t* const weights = kept_weights.take<std::uint8_t>(kRowBlock * 2 * kTileRows);
  for (std::int64_t j = run.begin; j < run.end; j += kTileRows) {
    turn_values(values, j, run.end, turned);
    const std::int64_t num_quads = (std::min(kTileRows, run.end - j) + 3) / 4;
    for (std::int64_t row = 0; row < rows.count; row += kRowBlock) {
      const std::int64_t count = std::min<std::int64_t>(rows.count - row, kRowBlock);
      for (std::int64_t r = 0; r < count; ++r) {
        const __m512 factor = _mm512_div_ps(_mm512_set1_ps(kByteWeightSteps), _mm512_set1_ps(weight_tops[row + r]));
        std::uint8_t* const high = weights + r * 2 * kTileRows;
        split_weights(rows.scores + (row + r) * rows.stride + j, 4 * num_quads, factor, high, high + kTileRows);
      }
      for (std::int64_t block = 0; block < step / kVectors; ++block)
        kSumBlocks[count - 1](weights, turned + block * kVectors, num_quads, step,
                              sums + row * stride + block * kVectorBytes, stride);
    }
  }
}

void finish_row(std::int64_t head_size, const double* sums, float weight_top, double total, float* output) {
  const __m256d unit = _mm256_set1_pd(static_cast<double>(weight_top) / (total * kTotalUnit) * kUnit);
  for (std::int64_t d = 0; d < head_size; d += 4) {
    const std::int64_t quarter = d % kVectorBytes / kLanes, vector = d / 4 % kVectors;
    const double* const four = sums + d / kVectorBytes * kVectorBytes + vector * kLanes + quarter * 4;
    _mm_storeu_ps(output + d, _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_loadu_pd(four), unit)));
  }
}

}  // namespace reader_edge
