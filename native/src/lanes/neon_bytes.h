// Loads, stores and rearrangements of 64 bytes in four NEON registers. lanes.h says what each function does.
#pragma once

namespace reader_edge::READER_EDGE_LANES {

inline Bytes load_bytes(const void* p) {
  const auto* const bytes = static_cast<const std::int8_t*>(p);
  return each<Bytes>([=](int i) { return vld1q_s8(bytes + 16 * i); });
}
inline Bytes load_bytes(const void* p, std::size_t count) {
  if (count == kVector) return load_bytes(p);
  std::int8_t bytes[kVector] = {};
  std::memcpy(bytes, p, count);
  return load_bytes(bytes);
}
inline void store_bytes(void* p, Bytes x) {
  for (int i = 0; i < 4; ++i) vst1q_s8(static_cast<std::int8_t*>(p) + 16 * i, x.v[i]);
}
inline Bytes in_all_quarters(const void* p) {
  const int8x16_t bytes = vld1q_s8(static_cast<const std::int8_t*>(p));
  return {{bytes, bytes, bytes, bytes}};
}
inline Bytes in_all_lanes(const void* p) {
  std::int32_t word;
  std::memcpy(&word, p, sizeof word);
  return each<Bytes>([=](int) { return vreinterpretq_s8_s32(vdupq_n_s32(word)); });
}
inline Bytes all_bytes(std::int8_t number) {
  return each<Bytes>([=](int) { return vdupq_n_s8(number); });
}
inline Bytes low_halves(Bytes x) {
  return each<Bytes>([&](int i) { return vandq_s8(x.v[i], vdupq_n_s8(0x0f)); });
}
inline Bytes high_halves(Bytes x) {
  return each<Bytes>([&](int i) { return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(x.v[i]), 4)); });
}
inline Bytes looked_up(Bytes table, Bytes x) {
  return each<Bytes>([&](int i) { return vqtbl1q_s8(table.v[i], vreinterpretq_u8_s8(x.v[i])); });
}
inline Bytes added_where(std::uint64_t bits, Bytes x, char value) {
  const uint8x16_t places = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  return each<Bytes>([&](int i) {
    const auto low = static_cast<std::uint8_t>(bits >> 16 * i), high = static_cast<std::uint8_t>(bits >> (16 * i + 8));
    const uint8x16_t set = vtstq_u8(vcombine_u8(vdup_n_u8(low), vdup_n_u8(high)), places);
    return vaddq_s8(x.v[i], vandq_s8(vreinterpretq_s8_u8(set), vdupq_n_s8(value)));
  });
}
inline Bytes raised(Bytes x) { return x; }
inline Bytes lowered(Bytes x) {
  return each<Bytes>([&](int i) { return veorq_s8(x.v[i], vdupq_n_s8(-128)); });
}

// Of 16 bits.
template <class Part>
inline Bytes each_word(Bytes a, Bytes b, const Part& part) {
  return each<Bytes>([&](int i) {
    return vreinterpretq_s8_s16(part(vreinterpretq_s16_s8(a.v[i]), vreinterpretq_s16_s8(b.v[i])));
  });
}
inline Bytes operator+(Bytes a, Bytes b) {
  return each_word(a, b, [](int16x8_t x, int16x8_t y) { return vaddq_s16(x, y); });
}
inline Bytes operator-(Bytes a, Bytes b) {
  return each_word(a, b, [](int16x8_t x, int16x8_t y) { return vsubq_s16(x, y); });
}
inline Bytes multiplied_words(Bytes a, Bytes b) {
  return each_word(a, b, [](int16x8_t x, int16x8_t y) { return vmulq_s16(x, y); });
}
inline Bytes all_words(std::int16_t number) {
  return each<Bytes>([=](int) { return vreinterpretq_s8_s16(vdupq_n_s16(number)); });
}
inline Ints even_words(Bytes x) {
  return each<Ints>([&](int i) {
    return vreinterpretq_s32_s16(vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_s8(x.v[i]), 8), 8));
  });
}
inline Ints odd_words(Bytes x) {
  return each<Ints>([&](int i) { return vreinterpretq_s32_s16(vshrq_n_s16(vreinterpretq_s16_s8(x.v[i]), 8)); });
}
inline Bytes twice_in_words(Ints x) {
  return each<Bytes>([&](int i) { return vreinterpretq_s8_s32(vsliq_n_s32(x.v[i], x.v[i], 16)); });
}

inline void interleave(Bytes (&x)[4]) {
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    const auto wide = [](int8x16_t a) { return vreinterpretq_s16_s8(a); };
    const int16x8_t a = wide(vzip1q_s8(x[0].v[q], x[1].v[q])), b = wide(vzip2q_s8(x[0].v[q], x[1].v[q]));
    const int16x8_t c = wide(vzip1q_s8(x[2].v[q], x[3].v[q])), d = wide(vzip2q_s8(x[2].v[q], x[3].v[q]));
    x[0].v[q] = vreinterpretq_s8_s16(vzip1q_s16(a, c));
    x[1].v[q] = vreinterpretq_s8_s16(vzip2q_s16(a, c));
    x[2].v[q] = vreinterpretq_s8_s16(vzip1q_s16(b, d));
    x[3].v[q] = vreinterpretq_s8_s16(vzip2q_s16(b, d));
  }
}

inline void transpose(Bytes (&x)[kLanes]) {
  Bytes transposed[kLanes];
#pragma GCC unroll 4
  for (int row = 0; row < 4; ++row) {
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      const auto at = [&](int i) { return vreinterpretq_s32_s8(x[4 * row + i].v[q]); };
      const auto wide = [](int32x4_t a) { return vreinterpretq_s64_s32(a); };
      const int64x2_t a = wide(vtrn1q_s32(at(0), at(1))), b = wide(vtrn2q_s32(at(0), at(1)));
      const int64x2_t c = wide(vtrn1q_s32(at(2), at(3))), d = wide(vtrn2q_s32(at(2), at(3)));
      transposed[4 * q].v[row] = vreinterpretq_s8_s64(vtrn1q_s64(a, c));
      transposed[4 * q + 1].v[row] = vreinterpretq_s8_s64(vtrn1q_s64(b, d));
      transposed[4 * q + 2].v[row] = vreinterpretq_s8_s64(vtrn2q_s64(a, c));
      transposed[4 * q + 3].v[row] = vreinterpretq_s8_s64(vtrn2q_s64(b, d));
    }
  }
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kLanes; ++i) x[i] = transposed[i];
}

inline Ints quarter_sums(const Ints (&x)[4]) {
  return each<Ints>([&](int i) {
    return vpaddq_s32(vpaddq_s32(x[i].v[0], x[i].v[1]), vpaddq_s32(x[i].v[2], x[i].v[3]));
  });
}

inline std::int32_t order_block(std::int8_t* block, std::int32_t& start) {
  static constexpr std::uint8_t kEvensFirst[16] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
  std::int32_t sum = 0;
  for (int i = 0; i < 2; ++i) {
    const int8x16_t bytes = vld1q_s8(block + 16 * i);
    vst1q_s8(block + 16 * i, vqtbl1q_s8(bytes, vld1q_u8(kEvensFirst)));
    sum += vaddlvq_s8(bytes);
  }
  start = -8 * sum;
  return start;
}

}  // namespace reader_edge::READER_EDGE_LANES
