// How large the numbers of a cache's rows are.
#pragma once

#include <immintrin.h>

#include "cache_rows.h"
#include "int8_rows.h"

namespace reader_edge {

// 64 magnitudes of rows [begin, begin + 16), zero from `end` on; whatever bytes they hold.
inline __m512 magnitudes(const CacheHead& head, std::int64_t begin, std::int64_t end) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i offsets = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(static_cast<int>(head.row_bytes())));
  const std::int64_t left = end - begin;
  const __mmask16 mask = left >= 16 ? 0xffff : left <= 0 ? 0 : static_cast<__mmask16>((1u << left) - 1);
  const std::int8_t* const last_words = head.row(begin) + head.head_size - 2;  // the two bytes in their upper half
  const __m512i words = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), mask, offsets, last_words, 1);
  const __m512i parts = _mm512_srai_epi32(_mm512_slli_epi32(words, 8), 24);
  const __m512i least = _mm512_set1_epi32(kLeastExponent), most = _mm512_set1_epi32(kMostExponent);
  const __m512i exponents = _mm512_min_epi32(_mm512_max_epi32(_mm512_srai_epi32(words, 24), least), most);
  const __m512i powers = _mm512_slli_epi32(_mm512_add_epi32(exponents, _mm512_set1_epi32(127)), 23);
  const __m512 numbers = _mm512_cvtepi32_ps(_mm512_add_epi32(parts, _mm512_set1_epi32(kPartsOrigin)));
  return _mm512_maskz_mul_ps(mask, numbers, _mm512_castsi512_ps(powers));
}

}  // namespace reader_edge
