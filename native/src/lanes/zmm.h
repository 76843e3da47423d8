// A vector as one register of 512 bits, which AVX-512 with VNNI has. lanes.h says what each function does.
#pragma once

#include <immintrin.h>

#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {

struct Floats {
  __m512 v;
};
struct Ints {
  __m512i v;
};
struct Bytes {
  __m512i v;
};
struct Doubles {
  __m512d v;
};
struct Lanes {
  __mmask16 mask;
};

inline Lanes first_lanes(std::size_t count) {
  return {count >= kLanes ? __mmask16{0xffff} : static_cast<__mmask16>((1u << count) - 1)};
}

inline Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Floats load(const float* p, Lanes lanes) { return {_mm512_maskz_loadu_ps(lanes.mask, p)}; }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x.v); }
inline void store(float* p, Floats x, Lanes lanes) { _mm512_mask_storeu_ps(p, lanes.mask, x.v); }
inline Floats all(float number) { return {_mm512_set1_ps(number)}; }
inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats fms(Floats a, Floats b, Floats c) { return {_mm512_fmsub_ps(a.v, b.v, c.v)}; }
inline Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats min(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Floats magnitude(Floats x) { return {_mm512_abs_ps(x.v)}; }
inline Floats negated(Floats x) { return {_mm512_xor_ps(x.v, _mm512_set1_ps(-0.0f))}; }
inline float largest_of(Floats x) { return _mm512_reduce_max_ps(x.v); }
inline Floats where(Lanes lanes, Floats a, Floats b) { return {_mm512_mask_blend_ps(lanes.mask, b.v, a.v)}; }
inline Floats unless_at_most(Floats x, Floats most, Floats value) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, most.v, _CMP_NLE_UQ), value.v)};
}
inline bool is_zero(Floats x) { return _mm512_cmp_ps_mask(x.v, _mm512_setzero_ps(), _CMP_NEQ_UQ) == 0; }
inline Floats scaled(Floats x, Floats powers) { return {_mm512_scalef_ps(x.v, powers.v)}; }
inline Floats load_halves(const std::uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Floats load_halves(const std::uint16_t* p, Lanes lanes) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes.mask, p))};
}
inline void store_halves(std::uint16_t* p, Floats x, Lanes lanes) {
  _mm256_mask_storeu_epi16(p, lanes.mask, _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}
inline Floats gathered(const float* p, Ints offsets) { return {_mm512_i32gather_ps(offsets.v, p, 4)}; }
inline Floats number_of(Ints x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline Floats bits_of(Ints x) { return {_mm512_castsi512_ps(x.v)}; }

template <int kStride>
Floats swapped(Floats x) {
  if constexpr (kStride == 1) return {_mm512_permute_ps(x.v, 0xb1)};
  if constexpr (kStride == 2) return {_mm512_permute_ps(x.v, 0x4e)};
  if constexpr (kStride == 4) return {_mm512_shuffle_f32x4(x.v, x.v, 0xb1)};
  if constexpr (kStride == 8) return {_mm512_shuffle_f32x4(x.v, x.v, 0x4e)};
}

inline Ints load(const std::int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store(std::int32_t* p, Ints x) { _mm512_storeu_si512(p, x.v); }
inline Ints all(std::int32_t number) { return {_mm512_set1_epi32(number)}; }
inline Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Ints operator-(Ints a, Ints b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline Ints operator*(Ints a, Ints b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
inline Ints max(Ints a, Ints b) { return {_mm512_max_epi32(a.v, b.v)}; }
inline Ints min(Ints a, Ints b) { return {_mm512_min_epi32(a.v, b.v)}; }
template <int kBits>
Ints shifted_left(Ints x) { return {_mm512_slli_epi32(x.v, kBits)}; }
template <int kBits>
Ints shifted_right(Ints x) { return {_mm512_srai_epi32(x.v, kBits)}; }
inline Ints rounded(Floats x) { return {_mm512_cvtps_epi32(x.v)}; }
inline Ints only(Ints x, Lanes lanes) { return {_mm512_maskz_mov_epi32(lanes.mask, x.v)}; }
inline std::int32_t total_of(Ints x) { return _mm512_reduce_add_epi32(x.v); }
inline Ints widened(const std::int8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Ints widened(const std::uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Ints gathered_words(const std::int8_t* p, Ints offsets, Lanes lanes) {
  return {_mm512_mask_i32gather_epi32(_mm512_setzero_si512(), lanes.mask, offsets.v, p, 1)};
}
inline void store_low_bytes(void* p, Ints x) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
}
inline void store_low_bytes(void* p, Ints x, Lanes lanes) { _mm512_mask_cvtepi32_storeu_epi8(p, lanes.mask, x.v); }
inline void store_clamped_bytes(void* p, Ints x, Lanes lanes) {
  _mm512_mask_cvtsepi32_storeu_epi8(p, lanes.mask, x.v);
}

inline void transpose(Bytes (&x)[kLanes]) {
  __m512i t[kLanes];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512i a = _mm512_unpacklo_epi32(x[i].v, x[i + 1].v), b = _mm512_unpackhi_epi32(x[i].v, x[i + 1].v);
    const __m512i c = _mm512_unpacklo_epi32(x[i + 2].v, x[i + 3].v), d = _mm512_unpackhi_epi32(x[i + 2].v, x[i + 3].v);
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
    x[i].v = _mm512_shuffle_i32x4(a, c, 0x88);
    x[i + 8].v = _mm512_shuffle_i32x4(a, c, 0xdd);
    x[i + 4].v = _mm512_shuffle_i32x4(b, d, 0x88);
    x[i + 12].v = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

inline Doubles load(const double* p) { return {_mm512_loadu_pd(p)}; }
inline void store(double* p, Doubles x) { _mm512_storeu_pd(p, x.v); }
inline Doubles all(double number) { return {_mm512_set1_pd(number)}; }
inline Doubles operator+(Doubles a, Doubles b) { return {_mm512_add_pd(a.v, b.v)}; }
inline Doubles operator*(Doubles a, Doubles b) { return {_mm512_mul_pd(a.v, b.v)}; }
inline Doubles operator/(Doubles a, Doubles b) { return {_mm512_div_pd(a.v, b.v)}; }
inline Doubles fma(Doubles a, Doubles b, Doubles c) { return {_mm512_fmadd_pd(a.v, b.v, c.v)}; }
inline double total_of(Doubles x) { return _mm512_reduce_add_pd(x.v); }
inline Doubles widened_low(Floats x) { return {_mm512_cvtps_pd(_mm512_castps512_ps256(x.v))}; }
inline Doubles widened_high(Floats x) { return {_mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1))}; }
inline Doubles widened_low(Ints x) { return {_mm512_cvtepi32_pd(_mm512_castsi512_si256(x.v))}; }
inline Doubles widened_high(Ints x) { return {_mm512_cvtepi32_pd(_mm512_extracti32x8_epi32(x.v, 1))}; }
inline Doubles load_widened(const float* p) { return {_mm512_cvtps_pd(_mm256_loadu_ps(p))}; }
inline void store_narrowed(float* p, Doubles x) { _mm256_storeu_ps(p, _mm512_cvtpd_ps(x.v)); }

}  // namespace reader_edge::READER_EDGE_LANES

#include "lanes/zmm_bytes.h"
