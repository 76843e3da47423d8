// Two registers of 256 bits to a vector, with AVX2, FMA and fp16. lanes.h says what each function does.
#pragma once

#include <immintrin.h>

#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {

struct Floats {
  __m256 low, high;
};
struct Ints {
  __m256i low, high;
};
struct Bytes {
  __m256i low, high;
};
struct Doubles {
  __m256d low, high;
};
struct Lanes {
  __m256i low, high;  // all bits of those that are in it
};

inline Lanes first_lanes(std::size_t count) {
  const __m256i number = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const int most = count >= kLanes ? static_cast<int>(kLanes) : static_cast<int>(count);
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(most), number),
          _mm256_cmpgt_epi32(_mm256_set1_epi32(most - 8), number)};
}

inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline Floats load(const float* p, Lanes lanes) {
  return {_mm256_maskload_ps(p, lanes.low), _mm256_maskload_ps(p + 8, lanes.high)};
}
inline void store(float* p, Floats x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}
inline void store(float* p, Floats x, Lanes lanes) {
  _mm256_maskstore_ps(p, lanes.low, x.low);
  _mm256_maskstore_ps(p + 8, lanes.high, x.high);
}
inline Floats all(float number) { return {_mm256_set1_ps(number), _mm256_set1_ps(number)}; }
inline Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Floats fma(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Floats fms(Floats a, Floats b, Floats c) {
  return {_mm256_fmsub_ps(a.low, b.low, c.low), _mm256_fmsub_ps(a.high, b.high, c.high)};
}
inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Floats magnitude(Floats x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.low), _mm256_andnot_ps(sign, x.high)};
}
inline Floats negated(Floats x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(sign, x.low), _mm256_xor_ps(sign, x.high)};
}
inline float largest_of(Floats x) {
  const __m256 eight = _mm256_max_ps(x.low, x.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline Floats where(Lanes lanes, Floats a, Floats b) {
  return {_mm256_blendv_ps(b.low, a.low, _mm256_castsi256_ps(lanes.low)),
          _mm256_blendv_ps(b.high, a.high, _mm256_castsi256_ps(lanes.high))};
}
inline Floats unless_at_most(Floats x, Floats most, Floats value) {
  return {_mm256_and_ps(_mm256_cmp_ps(x.low, most.low, _CMP_NLE_UQ), value.low),
          _mm256_and_ps(_mm256_cmp_ps(x.high, most.high, _CMP_NLE_UQ), value.high)};
}
inline bool is_zero(Floats x) {
  const __m256 zero = _mm256_setzero_ps();
  const __m256 others = _mm256_or_ps(_mm256_cmp_ps(x.low, zero, _CMP_NEQ_UQ), _mm256_cmp_ps(x.high, zero, _CMP_NEQ_UQ));
  return _mm256_movemask_ps(others) == 0;
}

inline __m256 power_of_two(__m256i exponents) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(exponents, _mm256_set1_epi32(127)), 23));
}
// In two factors, both of them normal numbers: the first product is exact, so that the second alone rounds.
inline __m256 scaled(__m256 x, __m256 powers) {
  const __m256i exponents = _mm256_cvtps_epi32(powers), half = _mm256_srai_epi32(exponents, 1);
  return _mm256_mul_ps(_mm256_mul_ps(x, power_of_two(half)), power_of_two(_mm256_sub_epi32(exponents, half)));
}
inline Floats scaled(Floats x, Floats powers) { return {scaled(x.low, powers.low), scaled(x.high, powers.high)}; }

inline Floats load_halves(const std::uint16_t* p) {
  const auto* const halves = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
inline Floats load_halves(const std::uint16_t* p, Lanes lanes) {
  alignas(32) std::uint16_t kept[kLanes] = {};
  const unsigned in_low = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes.low)));
  const unsigned in_high = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes.high)));
  const int count = __builtin_popcount(in_low | in_high << 8);
  for (int lane = 0; lane < count; ++lane) kept[lane] = p[lane];
  return load_halves(kept);
}
inline void store_halves(std::uint16_t* p, Floats x, Lanes lanes) {
  alignas(32) std::uint16_t kept[kLanes];
  auto* const halves = reinterpret_cast<__m128i*>(kept);
  _mm_store_si128(halves, _mm256_cvtps_ph(x.low, _MM_FROUND_TO_NEAREST_INT));
  _mm_store_si128(halves + 1, _mm256_cvtps_ph(x.high, _MM_FROUND_TO_NEAREST_INT));
  alignas(32) std::int32_t is_in[kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(is_in), lanes.low);
  _mm256_store_si256(reinterpret_cast<__m256i*>(is_in + 8), lanes.high);
  for (std::size_t lane = 0; lane < kLanes && is_in[lane] != 0; ++lane) p[lane] = kept[lane];
}
inline Floats gathered(const float* p, Ints offsets) {
  return {_mm256_i32gather_ps(p, offsets.low, 4), _mm256_i32gather_ps(p, offsets.high, 4)};
}
inline Floats number_of(Ints x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }
inline Floats bits_of(Ints x) { return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)}; }

template <int kStride>
Floats swapped(Floats x) {
  if constexpr (kStride == 1) return {_mm256_permute_ps(x.low, 0xb1), _mm256_permute_ps(x.high, 0xb1)};
  if constexpr (kStride == 2) return {_mm256_permute_ps(x.low, 0x4e), _mm256_permute_ps(x.high, 0x4e)};
  if constexpr (kStride == 4) {
    return {_mm256_permute2f128_ps(x.low, x.low, 1), _mm256_permute2f128_ps(x.high, x.high, 1)};
  }
  if constexpr (kStride == 8) return {x.high, x.low};
}

inline Doubles load(const double* p) { return {_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4)}; }
inline void store(double* p, Doubles x) {
  _mm256_storeu_pd(p, x.low);
  _mm256_storeu_pd(p + 4, x.high);
}
inline Doubles all(double number) { return {_mm256_set1_pd(number), _mm256_set1_pd(number)}; }
inline Doubles operator+(Doubles a, Doubles b) { return {_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)}; }
inline Doubles operator*(Doubles a, Doubles b) { return {_mm256_mul_pd(a.low, b.low), _mm256_mul_pd(a.high, b.high)}; }
inline Doubles operator/(Doubles a, Doubles b) { return {_mm256_div_pd(a.low, b.low), _mm256_div_pd(a.high, b.high)}; }
inline Doubles fma(Doubles a, Doubles b, Doubles c) {
  return {_mm256_fmadd_pd(a.low, b.low, c.low), _mm256_fmadd_pd(a.high, b.high, c.high)};
}
inline double total_of(Doubles x) {
  const __m256d four = _mm256_add_pd(x.low, x.high);
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
inline Doubles widened(__m256 x) {
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))};
}
inline Doubles widened(__m256i x) {
  return {_mm256_cvtepi32_pd(_mm256_castsi256_si128(x)), _mm256_cvtepi32_pd(_mm256_extracti128_si256(x, 1))};
}
inline Doubles widened_low(Floats x) { return widened(x.low); }
inline Doubles widened_high(Floats x) { return widened(x.high); }
inline Doubles widened_low(Ints x) { return widened(x.low); }
inline Doubles widened_high(Ints x) { return widened(x.high); }
inline Doubles load_widened(const float* p) { return widened(_mm256_loadu_ps(p)); }
inline void store_narrowed(float* p, Doubles x) {
  _mm256_storeu_ps(p, _mm256_set_m128(_mm256_cvtpd_ps(x.high), _mm256_cvtpd_ps(x.low)));
}

}  // namespace reader_edge::READER_EDGE_LANES

#include "lanes/ymm_ints.h"
