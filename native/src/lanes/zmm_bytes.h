// Registers of 512 bits: bytes and their products. lanes.h says what each function does.
#pragma once

namespace reader_edge::READER_EDGE_LANES {

inline Bytes load_bytes(const void* p) { return {_mm512_loadu_si512(p)}; }
inline Bytes load_bytes(const void* p, std::size_t count) {
  const __mmask64 mask = count == 0 ? 0 : ~std::uint64_t{0} >> (kVector - count);
  return {_mm512_maskz_loadu_epi8(mask, p)};
}
inline void store_bytes(void* p, Bytes x) { _mm512_storeu_si512(p, x.v); }
inline Bytes in_all_quarters(const void* p) {
  return {_mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
inline Bytes in_all_lanes(const void* p) {
  std::int32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  return {_mm512_set1_epi32(word)};
}
inline Bytes low_halves(Bytes x) { return {_mm512_and_si512(x.v, _mm512_set1_epi8(0x0f))}; }
inline Bytes high_halves(Bytes x) { return {_mm512_and_si512(_mm512_srli_epi16(x.v, 4), _mm512_set1_epi8(0x0f))}; }
inline Bytes looked_up(Bytes table, Bytes x) { return {_mm512_shuffle_epi8(table.v, x.v)}; }
// `value` more in bytes whose bit is set.
inline Bytes added_where(std::uint64_t bits, Bytes x, char value) {
  return {_mm512_mask_add_epi8(x.v, bits, x.v, _mm512_set1_epi8(value))};
}
inline Bytes raised(Bytes x) { return {_mm512_xor_si512(x.v, _mm512_set1_epi8(-128))}; }
inline Bytes lowered(Bytes x) { return x; }
inline Bytes operator+(Bytes a, Bytes b) { return {_mm512_add_epi16(a.v, b.v)}; }
inline Bytes operator-(Bytes a, Bytes b) { return {_mm512_sub_epi16(a.v, b.v)}; }
inline Bytes multiplied_words(Bytes a, Bytes b) { return {_mm512_mullo_epi16(a.v, b.v)}; }
inline Bytes all_bytes(std::int8_t number) { return {_mm512_set1_epi8(number)}; }
inline Bytes all_words(std::int16_t number) { return {_mm512_set1_epi16(number)}; }

inline void interleave(Bytes (&x)[4]) {
  const __m512i a = _mm512_unpacklo_epi8(x[0].v, x[1].v), b = _mm512_unpackhi_epi8(x[0].v, x[1].v);
  const __m512i c = _mm512_unpacklo_epi8(x[2].v, x[3].v), d = _mm512_unpackhi_epi8(x[2].v, x[3].v);
  x[0].v = _mm512_unpacklo_epi16(a, c);
  x[1].v = _mm512_unpackhi_epi16(a, c);
  x[2].v = _mm512_unpacklo_epi16(b, d);
  x[3].v = _mm512_unpackhi_epi16(b, d);
}

#ifdef READER_EDGE_EMULATED
inline void add_dot_products(Ints& sum, Bytes a, Bytes b) { sum.v = _mm512_dpbusd_epi32(sum.v, a.v, b.v); }
inline void add_dot_products(Ints& sum, Bytes a, const std::int8_t* four) {
  add_dot_products(sum, a, in_all_lanes(four));
}
#else
// The instruction itself: GCC 12 keeps too many copies of the sums when it is an intrinsic.
inline void add_dot_products(Ints& sum, Bytes a, Bytes b) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(a.v), "v"(b.v));
}
// Four bytes are read in every lane.
inline void add_dot_products(Ints& sum, Bytes a, const std::int8_t* four) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum.v) : "v"(a.v), "m"(*reinterpret_cast<const std::int32_t*>(four)));
}
#endif
inline void add_full_range_dot_products(Ints& sum, Bytes a, Bytes b) { add_dot_products(sum, a, b); }

inline Ints quarter_sums(const Ints (&x)[4]) {
  const __m512i a = x[0].v, b = x[1].v, c = x[2].v, d = x[3].v;
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const __m512i sums = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  return {_mm512_permutexvar_epi32(_mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), sums)};
}

inline Ints paired(Ints a, Ints b) { return {_mm512_mask_blend_epi16(0xaaaaaaaau, a.v, _mm512_slli_epi32(b.v, 16))}; }
inline Bytes twice_in_words(Ints x) { return {paired(x, x).v}; }
inline void add_pairs(Ints& sum, Ints a, Ints b) { sum.v = _mm512_dpwssd_epi32(sum.v, a.v, b.v); }

using BlockSums = Ints;

inline std::int32_t order_block(std::int8_t* block, std::int32_t& start) {
  const __m256i evens_first =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
  auto* const place = reinterpret_cast<__m256i*>(block);
  const __m256i bytes = _mm256_loadu_si256(place);
  _mm256_storeu_si256(place, _mm256_shuffle_epi8(bytes, evens_first));
  const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(8), bytes);
  start = -_mm512_reduce_add_epi32(_mm512_zextsi256_si512(sums));
  return start;
}

inline BlockSums block_start(std::int32_t start) { return all(start); }
inline void add_codes(BlockSums& sums, Bytes codes, Bytes four) { add_dot_products(sums, codes, four); }
// A block's sum fits 16 bits, so that one more instruction, which multiplies those, scales it and adds it.
inline void add_scaled(Ints& total, BlockSums sums, Ints scales) {
  add_pairs(total, sums, {_mm512_and_si512(scales.v, _mm512_set1_epi32(0xffff))});
}

template <std::size_t kBits>
class CodeSums {
 public:
  void start(std::int32_t start) { sums_ = all(start); }
  void add(Bytes codes, const std::int8_t* four) { add_dot_products(sums_, codes, four); }
  void add(Bytes codes, Bytes four) { add_dot_products(sums_, codes, four); }
  Ints total() const { return sums_; }

 private:
  Ints sums_;
};

}  // namespace reader_edge::READER_EDGE_LANES
