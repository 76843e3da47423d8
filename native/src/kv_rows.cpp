#include "kv_rows.h"

#include <immintrin.h>

#include "scratch.h"

namespace reader_edge {
namespace {

constexpr std::int64_t kLanes = 16;

}  // namespace

KvRows KvRows::from(std::int64_t offset) const { return floats_ ? KvRows(floats_ + offset) : KvRows(halves_ + offset); }

const float* KvRows::read(std::int64_t head_size, std::int64_t first, std::int64_t count) const {
  if (floats_) return floats_ + first * head_size;
  static thread_local Scratch scratch;
  const std::int64_t size = count * head_size;
  const std::uint16_t* const halves = halves_ + first * head_size;
  float* const rows = scratch.take<float>(size + kLanes);
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves + i));
    _mm512_store_ps(rows + i, _mm512_cvtph_ps(bits));
  }
  if (i < size) _mm512_store_ps(rows + i, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(0xff, halves + i)));
  return rows;
}

}  // namespace reader_edge
