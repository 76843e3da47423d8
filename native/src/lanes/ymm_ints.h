// Two registers of 256 bits to a vector: integers of 32 bits. lanes.h says what each function does.
#pragma once

namespace reader_edge::READER_EDGE_LANES {

inline __m256i load_ymm(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store_ymm(void* p, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }

inline Ints load(const std::int32_t* p) { return {load_ymm(p), load_ymm(p + 8)}; }
inline void store(std::int32_t* p, Ints x) {
  store_ymm(p, x.low);
  store_ymm(p + 8, x.high);
}
inline Ints all(std::int32_t number) { return {_mm256_set1_epi32(number), _mm256_set1_epi32(number)}; }
inline Ints operator+(Ints a, Ints b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
inline Ints operator-(Ints a, Ints b) { return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)}; }
inline Ints operator*(Ints a, Ints b) {
  return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)};
}
inline Ints max(Ints a, Ints b) { return {_mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high)}; }
inline Ints min(Ints a, Ints b) { return {_mm256_min_epi32(a.low, b.low), _mm256_min_epi32(a.high, b.high)}; }
template <int kBits>
Ints shifted_left(Ints x) { return {_mm256_slli_epi32(x.low, kBits), _mm256_slli_epi32(x.high, kBits)}; }
template <int kBits>
Ints shifted_right(Ints x) { return {_mm256_srai_epi32(x.low, kBits), _mm256_srai_epi32(x.high, kBits)}; }
inline Ints rounded(Floats x) { return {_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)}; }
inline Ints only(Ints x, Lanes lanes) {
  return {_mm256_and_si256(x.low, lanes.low), _mm256_and_si256(x.high, lanes.high)};
}
inline std::int32_t total_of(__m256i x) {
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}
inline std::int32_t total_of(Ints x) { return total_of(_mm256_add_epi32(x.low, x.high)); }
inline Ints widened(const std::int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes))};
}
inline Ints widened(const std::uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))};
}
inline Ints gathered_words(const std::int8_t* p, Ints offsets, Lanes lanes) {
  const auto* const words = reinterpret_cast<const int*>(p);
  const __m256i zero = _mm256_setzero_si256();
  return {_mm256_mask_i32gather_epi32(zero, words, offsets.low, lanes.low, 1),
          _mm256_mask_i32gather_epi32(zero, words, offsets.high, lanes.high, 1)};
}

// 16 bytes, each the lowest of a lane.
inline __m128i low_bytes(Ints x) {
  const __m256i byte = _mm256_set1_epi32(0xff);
  const __m256i words = _mm256_packus_epi32(_mm256_and_si256(x.low, byte), _mm256_and_si256(x.high, byte));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
  return _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
}
inline void store_low_bytes(void* p, Ints x) { _mm_storeu_si128(static_cast<__m128i*>(p), low_bytes(x)); }
inline void store_low_bytes(void* p, Ints x, Lanes lanes) {
  alignas(16) std::int8_t bytes[kLanes], is_in[kLanes];
  _mm_store_si128(reinterpret_cast<__m128i*>(bytes), low_bytes(x));
  _mm_store_si128(reinterpret_cast<__m128i*>(is_in), low_bytes({lanes.low, lanes.high}));
  for (std::size_t lane = 0; lane < kLanes && is_in[lane] != 0; ++lane) static_cast<std::int8_t*>(p)[lane] = bytes[lane];
}
inline void store_clamped_bytes(void* p, Ints x, Lanes lanes) {
  store_low_bytes(p, min(max(x, all(-128)), all(127)), lanes);
}

// Eight vectors of eight numbers, rows to columns.
inline void transpose(__m256i (&x)[8]) {
  __m256i t[8];
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    const __m256i a = _mm256_unpacklo_epi32(x[i], x[i + 1]), b = _mm256_unpackhi_epi32(x[i], x[i + 1]);
    const __m256i c = _mm256_unpacklo_epi32(x[i + 2], x[i + 3]), d = _mm256_unpackhi_epi32(x[i + 2], x[i + 3]);
    t[i] = _mm256_unpacklo_epi64(a, c);
    t[i + 1] = _mm256_unpackhi_epi64(a, c);
    t[i + 2] = _mm256_unpacklo_epi64(b, d);
    t[i + 3] = _mm256_unpackhi_epi64(b, d);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm256_permute2x128_si256(t[i], t[i + 4], 0x20);
    x[i + 4] = _mm256_permute2x128_si256(t[i], t[i + 4], 0x31);
  }
}

inline void transpose(Bytes (&x)[kLanes]) {
  __m256i parts[4][8];  // of rows and of columns: low low, low high, high low, high high
  for (int i = 0; i < 8; ++i) {
    parts[0][i] = x[i].low;
    parts[1][i] = x[i].high;
    parts[2][i] = x[i + 8].low;
    parts[3][i] = x[i + 8].high;
  }
  for (auto& part : parts) transpose(part);
  for (int i = 0; i < 8; ++i) {
    x[i] = {parts[0][i], parts[2][i]};
    x[i + 8] = {parts[1][i], parts[3][i]};
  }
}

}  // namespace reader_edge::READER_EDGE_LANES

#include "lanes/ymm_bytes.h"
