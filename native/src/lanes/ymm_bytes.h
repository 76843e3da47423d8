// Two registers of 256 bits to a vector: bytes, and integers of 16 bits. lanes.h says what each function does.
#pragma once

namespace reader_edge::READER_EDGE_LANES {

inline Bytes load_bytes(const void* p) {
  return {load_ymm(p), load_ymm(static_cast<const std::int8_t*>(p) + kVector / 2)};
}
inline Bytes load_bytes(const void* p, std::size_t count) {
  if (count >= kVector) return load_bytes(p);
  alignas(32) std::int8_t kept[kVector] = {};
  __builtin_memcpy(kept, p, count);
  return load_bytes(kept);
}
inline void store_bytes(void* p, Bytes x) {
  store_ymm(p, x.low);
  store_ymm(static_cast<std::int8_t*>(p) + kVector / 2, x.high);
}
inline Bytes in_all_quarters(const void* p) {
  const __m256i half = _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return {half, half};
}
inline Bytes in_all_lanes(const void* p) {
  std::int32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  return {_mm256_set1_epi32(word), _mm256_set1_epi32(word)};
}
inline Bytes all_bytes(std::int8_t number) { return {_mm256_set1_epi8(number), _mm256_set1_epi8(number)}; }
inline Bytes low_halves(Bytes x) {
  const __m256i half = _mm256_set1_epi8(0x0f);
  return {_mm256_and_si256(x.low, half), _mm256_and_si256(x.high, half)};
}
inline Bytes high_halves(Bytes x) { return low_halves({_mm256_srli_epi16(x.low, 4), _mm256_srli_epi16(x.high, 4)}); }
inline Bytes looked_up(Bytes table, Bytes x) {
  return {_mm256_shuffle_epi8(table.low, x.low), _mm256_shuffle_epi8(table.high, x.high)};
}

// `value` in the bytes whose bit is set, zero in others.
inline __m256i value_where(std::uint32_t bits, char value) {
  const __m256i byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit_of = _mm256_set1_epi64x(static_cast<std::int64_t>(0x8040201008040201));
  const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), byte_of);
  const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit_of), bit_of);
  return _mm256_and_si256(is_set, _mm256_set1_epi8(value));
}
inline Bytes added_where(std::uint64_t bits, Bytes x, char value) {
  return {_mm256_add_epi8(x.low, value_where(static_cast<std::uint32_t>(bits), value)),
          _mm256_add_epi8(x.high, value_where(static_cast<std::uint32_t>(bits >> 32), value))};
}
inline Bytes other_sign(Bytes x) {
  const __m256i sign = _mm256_set1_epi8(-128);
  return {_mm256_xor_si256(x.low, sign), _mm256_xor_si256(x.high, sign)};
}
inline Bytes raised(Bytes x) { return kUnsignedOffset == 0 ? x : other_sign(x); }
inline Bytes lowered(Bytes x) { return kUnsignedOffset == 0 ? other_sign(x) : x; }
inline Bytes operator+(Bytes a, Bytes b) { return {_mm256_add_epi16(a.low, b.low), _mm256_add_epi16(a.high, b.high)}; }
inline Bytes operator-(Bytes a, Bytes b) { return {_mm256_sub_epi16(a.low, b.low), _mm256_sub_epi16(a.high, b.high)}; }
inline Bytes multiplied_words(Bytes a, Bytes b) {
  return {_mm256_mullo_epi16(a.low, b.low), _mm256_mullo_epi16(a.high, b.high)};
}
inline Bytes all_words(std::int16_t number) { return {_mm256_set1_epi16(number), _mm256_set1_epi16(number)}; }

inline void interleave(__m256i& x, __m256i& y, __m256i& z, __m256i& w) {
  const __m256i a = _mm256_unpacklo_epi8(x, y), b = _mm256_unpackhi_epi8(x, y);
  const __m256i c = _mm256_unpacklo_epi8(z, w), d = _mm256_unpackhi_epi8(z, w);
  x = _mm256_unpacklo_epi16(a, c);
  y = _mm256_unpackhi_epi16(a, c);
  z = _mm256_unpacklo_epi16(b, d);
  w = _mm256_unpackhi_epi16(b, d);
}
inline void interleave(Bytes (&x)[4]) {
  interleave(x[0].low, x[1].low, x[2].low, x[3].low);
  interleave(x[0].high, x[1].high, x[2].high, x[3].high);
}

inline Ints even_words(Bytes x) {
  return {_mm256_srai_epi16(_mm256_slli_epi16(x.low, 8), 8), _mm256_srai_epi16(_mm256_slli_epi16(x.high, 8), 8)};
}
inline Ints odd_words(Bytes x) { return {_mm256_srai_epi16(x.low, 8), _mm256_srai_epi16(x.high, 8)}; }

inline __m256i paired(__m256i a, __m256i b) { return _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa); }
inline Ints paired(Ints a, Ints b) { return {paired(a.low, b.low), paired(a.high, b.high)}; }
inline Bytes twice_in_words(Ints x) { return {paired(x.low, x.low), paired(x.high, x.high)}; }
inline void add_pairs(Ints& sum, Ints a, Ints b) {
  sum = sum + Ints{_mm256_madd_epi16(a.low, b.low), _mm256_madd_epi16(a.high, b.high)};
}

// Halves of four vectors to two quarters, which hold a sum of each.
inline __m256i quarter_sums(__m256i a, __m256i b, __m256i c, __m256i d) {
  return _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
}
inline Ints quarter_sums(const Ints (&x)[4]) {
  const __m256i low = quarter_sums(x[0].low, x[1].low, x[2].low, x[3].low);
  const __m256i high = quarter_sums(x[0].high, x[1].high, x[2].high, x[3].high);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // quarters 0 2 0 2, then 1 3 1 3, to 0 1 2 3
  return {_mm256_permutevar8x32_epi32(_mm256_unpacklo_epi32(low, high), order),
          _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi32(low, high), order)};
}

// 32 bytes, of each eight those at even places first.
inline __m256i evens_first(__m256i bytes) {
  return _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(
                                        _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)));
}

}  // namespace reader_edge::READER_EDGE_LANES
