// NEON: a vector is four registers of 128 bits. lanes.h says what each function does.
#pragma once

#include <arm_neon.h>

#include <cstring>

#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {

constexpr int kUnsignedOffset = 0;
constexpr int kRowTile = 6, kSumVectors = 1;
constexpr int kBlockTile = 2, kUnpackedTile = 3, kCodeTile = 4, kUnpackRows = 9;
constexpr int kScoreTile = 2, kWeightTile = 2;
constexpr int kWidePanels = 1, kWideTile = 4, kWideRows = 5;
constexpr int kKeyTile = 4, kValueTile = 1, kStateVectors = 2;

struct Floats {
  float32x4_t v[4];
};
struct Ints {
  int32x4_t v[4];
};
struct Bytes {
  int8x16_t v[4];
};
struct Doubles {
  float64x2_t v[4];
};
struct Lanes {
  std::size_t count;
};

// A vector of what part(i) gives for each of its four registers.
template <class Vector, class Part>
[[gnu::always_inline]] inline Vector each(const Part& part) {
  return {{part(0), part(1), part(2), part(3)}};
}

// The first lanes' elements of a vector, others zero, without a look at what lies behind them.
template <class Element>
struct Partial {
  Element of[kLanes] = {};

  Partial() = default;
  Partial(const Element* p, Lanes lanes) { std::memcpy(of, p, lanes.count * sizeof(Element)); }
  void copy_to(void* p, Lanes lanes) const { std::memcpy(p, of, lanes.count * sizeof(Element)); }
};

inline Lanes first_lanes(std::size_t count) { return {count < kLanes ? count : kLanes}; }
// All bits of register i's lanes that are among the first.
inline uint32x4_t mask_of(Lanes lanes, int i) {
  static constexpr std::uint32_t kNumbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return vcltq_u32(vld1q_u32(kNumbers + 4 * i), vdupq_n_u32(static_cast<std::uint32_t>(lanes.count)));
}

inline Floats load(const float* p) {
  return each<Floats>([=](int i) { return vld1q_f32(p + 4 * i); });
}
inline Floats load(const float* p, Lanes lanes) {
  return load(lanes.count == kLanes ? p : Partial<float>(p, lanes).of);
}
inline void store(float* p, Floats x) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
inline void store(float* p, Floats x, Lanes lanes) {
  if (lanes.count == kLanes) return store(p, x);
  Partial<float> part;
  store(part.of, x);
  part.copy_to(p, lanes);
}
inline Floats all(float number) {
  return each<Floats>([=](int) { return vdupq_n_f32(number); });
}
inline Floats operator+(Floats a, Floats b) {
  return each<Floats>([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
inline Floats operator-(Floats a, Floats b) {
  return each<Floats>([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
inline Floats operator*(Floats a, Floats b) {
  return each<Floats>([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
inline Floats operator/(Floats a, Floats b) {
  return each<Floats>([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
inline Floats fma(Floats a, Floats b, Floats c) {
  return each<Floats>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
inline Floats fms(Floats a, Floats b, Floats c) {
  return each<Floats>([&](int i) { return vfmaq_f32(vnegq_f32(c.v[i]), a.v[i], b.v[i]); });
}
// The instructions for it give no number where either is none.
inline Floats max(Floats a, Floats b) {
  return each<Floats>([&](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
inline Floats min(Floats a, Floats b) {
  return each<Floats>([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
inline Floats magnitude(Floats x) {
  return each<Floats>([&](int i) { return vabsq_f32(x.v[i]); });
}
inline Floats negated(Floats x) {
  return each<Floats>([&](int i) { return vnegq_f32(x.v[i]); });
}
inline float largest_of(Floats x) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[1]), vmaxq_f32(x.v[2], x.v[3])));
}
inline Floats where(Lanes lanes, Floats a, Floats b) {
  return each<Floats>([&](int i) { return vbslq_f32(mask_of(lanes, i), a.v[i], b.v[i]); });
}
inline Floats unless_at_most(Floats x, Floats most, Floats value) {
  return each<Floats>([&](int i) {
    const uint32x4_t bits = vreinterpretq_u32_f32(value.v[i]);
    return vreinterpretq_f32_u32(vbicq_u32(bits, vcleq_f32(x.v[i], most.v[i])));
  });
}
inline bool is_zero(Floats x) {
  const auto zeros = each<Ints>([&](int i) { return vreinterpretq_s32_u32(vceqzq_f32(x.v[i])); });
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(zeros.v[0], zeros.v[1]), vmaxq_s32(zeros.v[2], zeros.v[3]))) < 0;
}
// In two factors, since one number holds no 2^-150: x stays normal times the first.
inline Floats scaled(Floats x, Floats powers) {
  const auto power = [](int32x4_t n) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23)); };
  return each<Floats>([&](int i) {
    const int32x4_t n = vcvtq_s32_f32(powers.v[i]), half = vshrq_n_s32(n, 1);
    return vmulq_f32(vmulq_f32(x.v[i], power(half)), power(vsubq_s32(n, half)));
  });
}
inline Floats load_halves(const std::uint16_t* p) {
  return each<Floats>([=](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
inline Floats load_halves(const std::uint16_t* p, Lanes lanes) {
  return load_halves(lanes.count == kLanes ? p : Partial<std::uint16_t>(p, lanes).of);
}
inline void store_halves(std::uint16_t* p, Floats x, Lanes lanes) {
  Partial<std::uint16_t> part;
  for (int i = 0; i < 4; ++i) vst1_u16(part.of + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
  part.copy_to(p, lanes);
}
inline Floats number_of(Ints x) {
  return each<Floats>([&](int i) { return vcvtq_f32_s32(x.v[i]); });
}
inline Floats bits_of(Ints x) {
  return each<Floats>([&](int i) { return vreinterpretq_f32_s32(x.v[i]); });
}
template <int kStride>
Floats swapped(Floats x) {
  if constexpr (kStride == 1) return each<Floats>([&](int i) { return vrev64q_f32(x.v[i]); });
  if constexpr (kStride == 2) return each<Floats>([&](int i) { return vextq_f32(x.v[i], x.v[i], 2); });
  if constexpr (kStride == 4) return {{x.v[1], x.v[0], x.v[3], x.v[2]}};
  if constexpr (kStride == 8) return {{x.v[2], x.v[3], x.v[0], x.v[1]}};
}

inline Doubles load(const double* p) {
  return each<Doubles>([=](int i) { return vld1q_f64(p + 2 * i); });
}
inline void store(double* p, Doubles x) {
  for (int i = 0; i < 4; ++i) vst1q_f64(p + 2 * i, x.v[i]);
}
inline Doubles all(double number) {
  return each<Doubles>([=](int) { return vdupq_n_f64(number); });
}
inline Doubles operator+(Doubles a, Doubles b) {
  return each<Doubles>([&](int i) { return vaddq_f64(a.v[i], b.v[i]); });
}
inline Doubles operator*(Doubles a, Doubles b) {
  return each<Doubles>([&](int i) { return vmulq_f64(a.v[i], b.v[i]); });
}
inline Doubles operator/(Doubles a, Doubles b) {
  return each<Doubles>([&](int i) { return vdivq_f64(a.v[i], b.v[i]); });
}
inline Doubles fma(Doubles a, Doubles b, Doubles c) {
  return each<Doubles>([&](int i) { return vfmaq_f64(c.v[i], a.v[i], b.v[i]); });
}
inline double total_of(Doubles x) {
  return vaddvq_f64(vaddq_f64(vaddq_f64(x.v[0], x.v[1]), vaddq_f64(x.v[2], x.v[3])));
}
// Eight numbers of which each register has four.
inline Doubles widened(float32x4_t a, float32x4_t b) {
  return {{vcvt_f64_f32(vget_low_f32(a)), vcvt_high_f64_f32(a), vcvt_f64_f32(vget_low_f32(b)), vcvt_high_f64_f32(b)}};
}
inline Doubles widened(int32x4_t a, int32x4_t b) {
  return {{vcvtq_f64_s64(vmovl_s32(vget_low_s32(a))), vcvtq_f64_s64(vmovl_high_s32(a)),
           vcvtq_f64_s64(vmovl_s32(vget_low_s32(b))), vcvtq_f64_s64(vmovl_high_s32(b))}};
}
inline Doubles widened_low(Floats x) { return widened(x.v[0], x.v[1]); }
inline Doubles widened_high(Floats x) { return widened(x.v[2], x.v[3]); }
inline Doubles widened_low(Ints x) { return widened(x.v[0], x.v[1]); }
inline Doubles widened_high(Ints x) { return widened(x.v[2], x.v[3]); }
inline Doubles load_widened(const float* p) { return widened(vld1q_f32(p), vld1q_f32(p + 4)); }
inline void store_narrowed(float* p, Doubles x) {
  vst1q_f32(p, vcombine_f32(vcvt_f32_f64(x.v[0]), vcvt_f32_f64(x.v[1])));
  vst1q_f32(p + 4, vcombine_f32(vcvt_f32_f64(x.v[2]), vcvt_f32_f64(x.v[3])));
}

}  // namespace reader_edge::READER_EDGE_LANES

#include "lanes/neon_ints.h"

#include "lanes/neon_bytes.h"
