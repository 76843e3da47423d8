// NEON: integers of 32 bits. lanes.h says what each function does.
#pragma once

namespace reader_edge::READER_EDGE_LANES {

inline Ints load(const std::int32_t* p) {
  return each<Ints>([=](int i) { return vld1q_s32(p + 4 * i); });
}
inline void store(std::int32_t* p, Ints x) {
  for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, x.v[i]);
}
inline Ints all(std::int32_t number) {
  return each<Ints>([=](int) { return vdupq_n_s32(number); });
}
inline Ints operator+(Ints a, Ints b) {
  return each<Ints>([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
}
inline Ints operator-(Ints a, Ints b) {
  return each<Ints>([&](int i) { return vsubq_s32(a.v[i], b.v[i]); });
}
inline Ints operator*(Ints a, Ints b) {
  return each<Ints>([&](int i) { return vmulq_s32(a.v[i], b.v[i]); });
}
inline Ints max(Ints a, Ints b) {
  return each<Ints>([&](int i) { return vmaxq_s32(a.v[i], b.v[i]); });
}
inline Ints min(Ints a, Ints b) {
  return each<Ints>([&](int i) { return vminq_s32(a.v[i], b.v[i]); });
}
template <int kBits>
Ints shifted_left(Ints x) {
  return each<Ints>([&](int i) { return vshlq_n_s32(x.v[i], kBits); });
}
template <int kBits>
Ints shifted_right(Ints x) {
  return each<Ints>([&](int i) { return vshrq_n_s32(x.v[i], kBits); });
}
inline Ints rounded(Floats x) {
  return each<Ints>([&](int i) { return vcvtnq_s32_f32(x.v[i]); });
}
inline Ints only(Ints x, Lanes lanes) {
  return each<Ints>([&](int i) { return vandq_s32(x.v[i], vreinterpretq_s32_u32(mask_of(lanes, i))); });
}
inline std::int32_t total_of(Ints x) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(x.v[0], x.v[1]), vaddq_s32(x.v[2], x.v[3])));
}
inline Ints widened(const std::int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return {{vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)}};
}
inline Ints widened(const std::uint8_t* p) {
  const uint8x16_t bytes = vld1q_u8(p);
  const int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes)));
  const int16x8_t high = vreinterpretq_s16_u16(vmovl_high_u8(bytes));
  return {{vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)}};
}

// There is no instruction for it.
inline Floats gathered(const float* p, Ints offsets) {
  std::int32_t places[kLanes];
  store(places, offsets);
  Partial<float> found;
  for (std::size_t lane = 0; lane < kLanes; ++lane) found.of[lane] = p[places[lane]];
  return load(found.of);
}
inline Ints gathered_words(const std::int8_t* p, Ints offsets, Lanes lanes) {
  std::int32_t places[kLanes];
  store(places, offsets);
  Partial<std::int32_t> found;
  for (std::size_t lane = 0; lane < lanes.count; ++lane) std::memcpy(found.of + lane, p + places[lane], 4);
  return load(found.of);
}

inline int8x16_t low_bytes(Ints x) {
  const auto words = [&](int i) { return vcombine_s16(vmovn_s32(x.v[i]), vmovn_s32(x.v[i + 1])); };
  return vcombine_s8(vmovn_s16(words(0)), vmovn_s16(words(2)));
}
inline void store_low_bytes(void* p, Ints x) { vst1q_s8(static_cast<std::int8_t*>(p), low_bytes(x)); }
inline void store_low_bytes(void* p, Ints x, Lanes lanes) {
  Partial<std::int8_t> part;
  vst1q_s8(part.of, low_bytes(x));
  part.copy_to(p, lanes);
}
inline void store_clamped_bytes(void* p, Ints x, Lanes lanes) {
  const auto words = [&](int i) { return vcombine_s16(vqmovn_s32(x.v[i]), vqmovn_s32(x.v[i + 1])); };
  Partial<std::int8_t> part;
  vst1q_s8(part.of, vcombine_s8(vqmovn_s16(words(0)), vqmovn_s16(words(2))));
  part.copy_to(p, lanes);
}

inline Ints paired(Ints a, Ints b) {
  return each<Ints>([&](int i) { return vsliq_n_s32(a.v[i], b.v[i], 16); });
}
inline void add_pairs(Ints& sum, Ints a, Ints b) {
  sum = each<Ints>([&](int i) {
    const int16x8_t left = vreinterpretq_s16_s32(a.v[i]), right = vreinterpretq_s16_s32(b.v[i]);
    const int32x4_t low = vmull_s16(vget_low_s16(left), vget_low_s16(right));
    return vaddq_s32(sum.v[i], vpaddq_s32(low, vmull_high_s16(left, right)));
  });
}

}  // namespace reader_edge::READER_EDGE_LANES
