// exp in fp32, to the bits of ONNX Runtime's Exp on processors with AVX-512; for x of at most kExpMax.
#pragma once

#include <initializer_list>

#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {

constexpr float kExpMax = 88.7762626647950f;  // ONNX Runtime clamps there: the result is infinite

constexpr float kExpLeast = -103.9720840454f;  // from there down the result is zero

// Its range reduction and polynomial, of several vectors step by step, so that none waits for another. Masked scores are
// reckoned as one and then left out: results too small for a normal number take an x86 processor a hundred cycles, even
// those that round to zero.
template <int kCount>
[[gnu::always_inline]] inline void exp_each(Floats (&scores)[kCount]) {
  const Floats bias = all(12582912.0f), least = all(kExpLeast);
  Floats m[kCount], r[kCount], p[kCount];
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i) {
    r[i] = unless_at_most(scores[i], least, scores[i]);
    m[i] = fma(r[i], all(1.44269504088896341f), bias) - bias;
    p[i] = all(0x1.694000p-10f);
  }
  for (const float c : {-6.93145752e-1f, -1.42860677e-6f}) {
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) r[i] = fma(m[i], all(c), r[i]);
  }
  for (const float c : {0x1.125edcp-7f, 0x1.555b5ap-5f, 0x1.555450p-3f, 0x1.fffff6p-2f, 1.0f, 1.0f}) {
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) p[i] = fma(p[i], r[i], all(c));
  }
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i) scores[i] = unless_at_most(scores[i], least, scaled(p[i], m[i]));
}

inline Floats exp_of(Floats score) {
  Floats scores[1] = {score};
  exp_each(scores);
  return scores[0];
}

}  // namespace reader_edge::READER_EDGE_LANES
