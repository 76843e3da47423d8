// AVX-512 for processors that lack it, to see what kernels would compute there: SIMDe's functions under Intel's names, and
// here those that SIMDe 0.7.4 lacks or has otherwise, after Intel's guide. Ours lie in the set's namespace, where its
// words find them before the compiler's. Nothing here is quick.
#pragma once

#include <immintrin.h>

#define SIMDE_NO_INLINE  // or kernels take minutes to compile
#define SIMDE_X86_AVX512F_ENABLE_NATIVE_ALIASES
#define SIMDE_X86_AVX512BW_ENABLE_NATIVE_ALIASES
#define SIMDE_X86_AVX512DQ_ENABLE_NATIVE_ALIASES
#define SIMDE_X86_AVX512VL_ENABLE_NATIVE_ALIASES
#define SIMDE_X86_AVX512VNNI_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#define __m512 simde__m512
#define __m512i simde__m512i
#define __m512d simde__m512d
#undef _mm512_abs_ps     // SIMDe's keeps the sign of a zero
#undef _mm512_scalef_ps  // SIMDe's has no subnormal results
#undef _mm512_shuffle_f32x4
#define _mm512_shuffle_f32x4 simde_mm512_shuffle_f32x4
#undef _mm512_cvtps_ph  // from here on: macros where nothing is optimised
#undef _mm512_extractf32x8_ps
#undef _mm512_extracti32x8_epi32
#undef _mm512_i32gather_ps
#undef _mm512_mask_i32gather_epi32
#undef _mm512_permute_ps
#undef _mm512_srai_epi32

namespace reader_edge::READER_EDGE_LANES {

inline __m512 joined(__m256 low, __m256 high) {
  simde__m512_private x;
  x.m256[0] = low, x.m256[1] = high;
  return simde__m512_from_private(x);
}
inline __m512i joined(__m256i low, __m256i high) {
  simde__m512i_private x;
  x.m256i[0] = low, x.m256i[1] = high;
  return simde__m512i_from_private(x);
}
inline __m512d joined(__m256d low, __m256d high) {
  simde__m512d_private x;
  x.m256d[0] = low, x.m256d[1] = high;
  return simde__m512d_from_private(x);
}

inline __m256 _mm512_extractf32x8_ps(__m512 x, int half) { return simde__m512_to_private(x).m256[half]; }
inline __m256i _mm512_extracti32x8_epi32(__m512i x, int half) { return simde__m512i_to_private(x).m256i[half]; }
inline __m512i _mm512_zextsi256_si512(__m256i x) { return joined(x, _mm256_setzero_si256()); }

// Conversions, rounded to nearest, ties to even, as MXCSR has it.
inline __m512d _mm512_cvtps_pd(__m256 x) {
  return joined(_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
}
inline __m512d _mm512_cvtepi32_pd(__m256i x) {
  return joined(_mm256_cvtepi32_pd(_mm256_castsi256_si128(x)), _mm256_cvtepi32_pd(_mm256_extracti128_si256(x, 1)));
}
inline __m256 _mm512_cvtpd_ps(__m512d x) {
  const simde__m512d_private halves = simde__m512d_to_private(x);
  return _mm256_set_m128(_mm256_cvtpd_ps(halves.m256d[1]), _mm256_cvtpd_ps(halves.m256d[0]));
}
inline __m512 _mm512_cvtepi32_ps(__m512i x) {
  const simde__m512i_private halves = simde__m512i_to_private(x);
  return joined(_mm256_cvtepi32_ps(halves.m256i[0]), _mm256_cvtepi32_ps(halves.m256i[1]));
}
inline __m512i _mm512_cvtps_epi32(__m512 x) {
  const simde__m512_private halves = simde__m512_to_private(x);
  return joined(_mm256_cvtps_epi32(halves.m256[0]), _mm256_cvtps_epi32(halves.m256[1]));
}
inline __m512 _mm512_cvtph_ps(__m256i x) {
  return joined(_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
}
inline __m256i _mm512_cvtps_ph(__m512 x, int) {  // our only rounding
  const simde__m512_private halves = simde__m512_to_private(x);
  return _mm256_set_m128i(_mm256_cvtps_ph(halves.m256[1], _MM_FROUND_TO_NEAREST_INT),
                          _mm256_cvtps_ph(halves.m256[0], _MM_FROUND_TO_NEAREST_INT));
}
inline __m512i _mm512_cvtepi8_epi32(__m128i x) {
  return joined(_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(x, x)));
}
inline __m512i _mm512_cvtepu8_epi32(__m128i x) {
  return joined(_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(x, x)));
}

// Lanes one by one.
inline __m512 _mm512_abs_ps(__m512 x) {
  simde__m512_private lanes = simde__m512_to_private(x);
  for (int i = 0; i < 16; ++i) lanes.u32[i] &= 0x7fffffff;
  return simde__m512_from_private(lanes);
}
// a * 2^floor(b): exact in fp64, where powers beyond 1000 change nothing more, and then rounded once.
inline __m512 _mm512_scalef_ps(__m512 a, __m512 b) {
  simde__m512_private x = simde__m512_to_private(a);
  const simde__m512_private powers = simde__m512_to_private(b);
  for (int i = 0; i < 16; ++i) {
    const float power = std::floor(powers.f32[i]);
    if (std::isnan(x.f32[i])) continue;
    if (!std::isfinite(power)) {
      x.f32[i] *= power < 0 ? 0.0f : power;
    } else {
      const int exponent = static_cast<int>(std::fmin(std::fmax(power, -1000.0f), 1000.0f));
      x.f32[i] = static_cast<float>(std::ldexp(double{x.f32[i]}, exponent));
    }
  }
  return simde__m512_from_private(x);
}
inline __m512 _mm512_permute_ps(__m512 x, int order) {
  const simde__m512_private from = simde__m512_to_private(x);
  simde__m512_private to;
  for (int i = 0; i < 16; ++i) to.f32[i] = from.f32[i / 4 * 4 + (order >> i % 4 * 2 & 3)];
  return simde__m512_from_private(to);
}
inline __m512i _mm512_srai_epi32(__m512i x, unsigned count) {
  simde__m512i_private lanes = simde__m512i_to_private(x);
  for (int i = 0; i < 16; ++i) lanes.i32[i] >>= count < 32 ? count : 31;
  return simde__m512i_from_private(lanes);
}
inline __m512 _mm512_i32gather_ps(__m512i offsets, const void* p, int scale) {
  const simde__m512i_private places = simde__m512i_to_private(offsets);
  simde__m512_private x;
  for (int i = 0; i < 16; ++i) {
    std::memcpy(&x.f32[i], static_cast<const char*>(p) + std::int64_t{places.i32[i]} * scale, sizeof(float));
  }
  return simde__m512_from_private(x);
}
inline __m512i _mm512_mask_i32gather_epi32(__m512i others, __mmask16 mask, __m512i offsets, const void* p, int scale) {
  const simde__m512i_private places = simde__m512i_to_private(offsets);
  simde__m512i_private x = simde__m512i_to_private(others);
  for (int i = 0; i < 16; ++i) {
    const char* const place = static_cast<const char*>(p) + std::int64_t{places.i32[i]} * scale;
    if (mask >> i & 1) std::memcpy(&x.i32[i], place, sizeof(std::int32_t));
  }
  return simde__m512i_from_private(x);
}

// Loads and stores that leave the memory of other lanes alone.
inline __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const void* p) {
  simde__m512_private x = {};
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) std::memcpy(&x.f32[i], static_cast<const float*>(p) + i, sizeof(float));
  }
  return simde__m512_from_private(x);
}
inline __m512i _mm512_maskz_loadu_epi8(__mmask64 mask, const void* p) {
  simde__m512i_private x = {};
  for (int i = 0; i < 64; ++i) {
    if (mask >> i & 1) x.i8[i] = static_cast<const std::int8_t*>(p)[i];
  }
  return simde__m512i_from_private(x);
}
inline __m256i _mm256_maskz_loadu_epi16(__mmask16 mask, const void* p) {
  simde__m256i_private x = {};
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) std::memcpy(&x.i16[i], static_cast<const std::int16_t*>(p) + i, sizeof(std::int16_t));
  }
  return simde__m256i_from_private(x);
}
inline void _mm512_mask_storeu_ps(void* p, __mmask16 mask, __m512 x) {
  const simde__m512_private lanes = simde__m512_to_private(x);
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) std::memcpy(static_cast<float*>(p) + i, &lanes.f32[i], sizeof(float));
  }
}
inline void _mm256_mask_storeu_epi16(void* p, __mmask16 mask, __m256i x) {
  const simde__m256i_private words = simde__m256i_to_private(x);
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) std::memcpy(static_cast<std::int16_t*>(p) + i, &words.i16[i], sizeof(std::int16_t));
  }
}
inline void _mm512_mask_cvtepi32_storeu_epi8(void* p, __mmask16 mask, __m512i x) {
  const simde__m512i_private lanes = simde__m512i_to_private(x);
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) static_cast<std::int8_t*>(p)[i] = static_cast<std::int8_t>(lanes.i32[i]);
  }
}
inline void _mm512_mask_cvtsepi32_storeu_epi8(void* p, __mmask16 mask, __m512i x) {
  const __m512i least = _mm512_set1_epi32(-128), most = _mm512_set1_epi32(127);
  _mm512_mask_cvtepi32_storeu_epi8(p, mask, _mm512_min_epi32(_mm512_max_epi32(x, least), most));
}
inline __m128i _mm512_cvtepi32_epi8(__m512i x) {
  __m128i bytes;
  _mm512_mask_cvtepi32_storeu_epi8(&bytes, 0xffff, x);
  return bytes;
}

// Over all lanes, halves by halves as compilers do.
inline std::int32_t _mm512_reduce_add_epi32(__m512i x) {
  const simde__m512i_private lanes = simde__m512i_to_private(x);
  std::uint32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += lanes.u32[i];
  return static_cast<std::int32_t>(sum);
}
inline double _mm512_reduce_add_pd(__m512d x) {
  simde__m512d_private lanes = simde__m512d_to_private(x);
  for (int half = 4; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes.f64[i] = lanes.f64[i + half] + lanes.f64[i];
  }
  return lanes.f64[0];
}
inline float _mm512_reduce_max_ps(__m512 x) {
  simde__m512_private lanes = simde__m512_to_private(x);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      if (lanes.f32[i + half] > lanes.f32[i]) lanes.f32[i] = lanes.f32[i + half];
    }
  }
  return lanes.f32[0];
}

inline __m256i _mm256_dpbusd_avx_epi32(__m256i sum, __m256i a, __m256i b) {
  return simde_mm256_dpbusd_epi32(sum, a, b);
}

}  // namespace reader_edge::READER_EDGE_LANES
