// exp in fp32, to the bits of ONNX Runtime's Exp on processors with AVX-512; for x of at most kExpMax.
#pragma once

#include <initializer_list>

#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {

constexpr float kExpMax = 88.7762626647950f;  // ONNX Runtime clamps there: the result is infinite

constexpr float kExpLeast = -103.9720840454f;  // from there down the result is zero

// Its range reduction and polynomial. Masked scores are reckoned as one and then left out: results too small for a normal
// number take an x86 processor a hundred cycles, even those that round to zero.
inline Floats exp_of(Floats score) {
  const Floats bias = all(12582912.0f), least = all(kExpLeast);
  const Floats x = unless_at_most(score, least, score);
  const Floats m = fma(x, all(1.44269504088896341f), bias) - bias;
  Floats r = fma(m, all(-6.93145752e-1f), x);
  r = fma(m, all(-1.42860677e-6f), r);
  Floats p = all(0x1.694000p-10f);
  for (const float c : {0x1.125edcp-7f, 0x1.555b5ap-5f, 0x1.555450p-3f, 0x1.fffff6p-2f, 1.0f, 1.0f}) p = fma(p, r, all(c));
  return unless_at_most(score, least, scaled(p, m));
}

}  // namespace reader_edge::READER_EDGE_LANES
