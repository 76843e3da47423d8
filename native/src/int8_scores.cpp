// Lanes of a vector are 16 keys, which are turned once for all query rows: four components of each to a lane, unsigned,
// times four of a query in every lane, signed, twice. Sums of 32-bit integers are exact in any order.
#include <immintrin.h>

#include <algorithm>
#include <limits>

#include "cache_magnitudes.h"
#include "int8_rows.h"

namespace reader_edge {
namespace {

constexpr std::int64_t kLanes = 16;
constexpr int kGroups = 2;  // of 16 keys, whose sums are in registers together
constexpr int kRowBlock = 4;
constexpr std::int64_t kTileKeys = kGroups * kLanes;

struct Tile {
  alignas(64) std::int32_t keys[kGroups][kMostHeadSize / 4][kLanes];
  __m512 magnitudes[kGroups];
};

inline void add_products(__m512i& sum, __m512i values, __m512i weights) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(values), "v"(weights));
}

// 16 vectors of 16 numbers, rows to columns.
void transpose(__m512i (&m)[kLanes]) {
  __m512i t[kLanes];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512i a = _mm512_unpacklo_epi32(m[i], m[i + 1]), b = _mm512_unpackhi_epi32(m[i], m[i + 1]);
    const __m512i c = _mm512_unpacklo_epi32(m[i + 2], m[i + 3]), d = _mm512_unpackhi_epi32(m[i + 2], m[i + 3]);
    t[i] = _mm512_unpacklo_epi64(a, c);
    t[i + 1] = _mm512_unpackhi_epi64(a, c);
    t[i + 2] = _mm512_unpacklo_epi64(b, d);
    t[i + 3] = _mm512_unpackhi_epi64(b, d);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88), b = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
    m[i] = _mm512_shuffle_i32x4(a, c, 0x88);
    m[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
    m[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
    m[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

// Keys [begin, begin + 16), those from `end` on as zeros, turned; bytes are 128 too large.
void turn_keys(const CacheHead& keys, std::int64_t begin, std::int64_t end, std::int32_t (*turned)[kLanes]) {
  const __m512i raised = _mm512_set1_epi8(-128);
  for (std::int64_t d = 0; d < keys.head_size; d += kVectorBytes) {
    const std::int64_t left = std::min(keys.head_size - d, kVectorBytes);
    const __mmask64 mask = ~std::uint64_t{0} >> (kVectorBytes - left);
    __m512i vectors[kLanes];
#pragma GCC unroll 16
    for (int k = 0; k < kLanes; ++k) {
      _mm_prefetch(keys.row(begin + k + kTileKeys) + d, _MM_HINT_T0);
      vectors[k] = _mm512_maskz_loadu_epi8(begin + k < end ? mask : 0, keys.row(begin + k) + d);
    }
    transpose(vectors);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (4 * i < left) _mm512_store_si512(turned[d / 4 + i], _mm512_xor_si512(vectors[i], raised));
    }
  }
}

inline __m512i in_all_lanes(const std::int8_t* four) {
  std::int32_t word;
  __builtin_memcpy(&word, four, sizeof word);
  return _mm512_set1_epi32(word);
}

// Scores of kRows rows from `row` on against a tile, unmasked.
template <int kRows>
void score_block(const Tile& tile, std::int64_t head_size, const QueryRows& rows, std::int64_t row,
                 __m512 (*scores)[kGroups]) {
  __m512i sums[kRows][2][kGroups];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) sums[r][p][0] = sums[r][p][1] = _mm512_set1_epi32(rows.starts[(row + r) * 2 + p]);
  }
  const std::int8_t* const planes = rows.planes + row * 2 * rows.plane_bytes;
  for (std::int64_t i = 0; i < head_size / 4; ++i) {
    const __m512i first = _mm512_load_si512(tile.keys[0][i]), second = _mm512_load_si512(tile.keys[1][i]);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int p = 0; p < 2; ++p) {
        const __m512i query = in_all_lanes(planes + (r * 2 + p) * rows.plane_bytes + 4 * i);
        add_products(sums[r][p][0], first, query);
        add_products(sums[r][p][1], second, query);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const __m512 factor = _mm512_set1_ps(rows.factors[row + r]);
#pragma GCC unroll 2
    for (int g = 0; g < kGroups; ++g) {
      const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(sums[r][0][g], 8), sums[r][1][g]);
      scores[r][g] = _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), tile.magnitudes[g]), factor);
    }
  }
}

using ScoreBlock = void (*)(const Tile&, std::int64_t, const QueryRows&, std::int64_t, __m512 (*)[kGroups]);
constexpr ScoreBlock kScoreBlocks[] = {score_block<1>, score_block<2>, score_block<3>, score_block<4>};

__mmask16 lanes_left(std::int64_t left) {
  return left >= kLanes ? 0xffff : left <= 0 ? 0 : static_cast<__mmask16>((1u << left) - 1);
}

// Adds the mask to 16 scores from key `begin` on; those from `end` on become -infinity.
inline __m512 masked(const Mask& mask, std::int64_t row, std::int64_t begin, std::int64_t end, __m512 scores) {
  const __mmask16 lanes = lanes_left(end - begin);
  if (begin + kLanes > mask.first) {
    const float* const added = mask.rows + row % mask.nodes * mask.stride + begin;
    scores = _mm512_add_ps(scores, _mm512_maskz_loadu_ps(lanes, added));
  }
  return _mm512_mask_blend_ps(lanes, _mm512_set1_ps(-std::numeric_limits<float>::infinity()), scores);
}

}  // namespace

void score_run(const CacheHead& keys, const Mask& mask, const QueryRows& rows, Run run, float* tops) {
  static thread_local Tile tile;
  __m512 largest[kMostQueryRows];
  std::fill_n(largest, rows.count, _mm512_set1_ps(-std::numeric_limits<float>::infinity()));
  for (std::int64_t j = run.begin; j < run.end; j += kTileKeys) {
    for (int g = 0; g < kGroups; ++g) {
      turn_keys(keys, j + g * kLanes, run.end, tile.keys[g]);
      tile.magnitudes[g] = magnitudes(keys, j + g * kLanes, run.end);
    }
    for (std::int64_t row = 0; row < rows.count; row += kRowBlock) {
      __m512 scores[kRowBlock][kGroups];
      const std::int64_t count = std::min<std::int64_t>(rows.count - row, kRowBlock);
      kScoreBlocks[count - 1](tile, keys.head_size, rows, row, scores);
      for (std::int64_t r = row; r < row + count; ++r) {
        for (int g = 0; g < kGroups && j + g * kLanes < run.end; ++g) {
          const std::int64_t begin = j + g * kLanes;
          const __m512 score = masked(mask, rows.first + r, begin, run.end, scores[r - row][g]);
          largest[r] = _mm512_max_ps(largest[r], score);
          _mm512_store_ps(rows.scores + r * rows.stride + begin, score);
        }
      }
    }
  }
  for (std::int64_t r = 0; r < rows.count; ++r) tops[r] = std::max(tops[r], _mm512_reduce_max_ps(largest[r]));
}

}  // namespace reader_edge
