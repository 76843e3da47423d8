// exp in fp32, to the bits of ONNX Runtime's Exp on processors with AVX-512; for x of at most kExpMax.
#pragma once

#include <immintrin.h>

namespace reader_edge {

constexpr float kExpMax = 88.7762626647950f;  // ONNX Runtime clamps there: the result is infinite

// Its range reduction and polynomial.
inline __m512 exp_of(__m512 x) {
  const __m512 bias = _mm512_set1_ps(12582912.0f);
  x = _mm512_max_ps(_mm512_set1_ps(-103.9720840454f), x);
  const __m512 m = _mm512_sub_ps(_mm512_fmadd_ps(x, _mm512_set1_ps(1.44269504088896341f), bias), bias);
  __m512 r = _mm512_fmadd_ps(m, _mm512_set1_ps(-6.93145752e-1f), x);
  r = _mm512_fmadd_ps(m, _mm512_set1_ps(-1.42860677e-6f), r);
  __m512 p = _mm512_set1_ps(0x1.694000p-10f);
  for (const float c : {0x1.125edcp-7f, 0x1.555b5ap-5f, 0x1.555450p-3f, 0x1.fffff6p-2f, 1.0f, 1.0f})
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
  return _mm512_scalef_ps(p, m);
}

}  // namespace reader_edge
