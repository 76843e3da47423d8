#include "cache_rows.h"

#include <immintrin.h>

#include <algorithm>
#include <stdexcept>

#include "scratch.h"

namespace reader_edge {
namespace {

constexpr std::size_t kLanes = 16;
constexpr float kPartsOfPower = 64.0f, kMostParts = 128.0f;
constexpr std::size_t kSerialElements = 16 * 1024;  // fewer are not worth waking threads

__mmask16 lanes_left(std::size_t left) {
  return left >= kLanes ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
}

float largest_of(const float* row, std::size_t size) {
  __m512 largest = _mm512_setzero_ps();
  for (std::size_t d = 0; d < size; d += kLanes)
    largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_maskz_loadu_ps(lanes_left(size - d), row + d)));
  return _mm512_reduce_max_ps(largest);
}

int exponent_of(float number) {
  std::uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return std::min(static_cast<int>(bits >> 23) - 127, kMostExponent);
}

// A row (size,) whose largest magnitude is `largest`.
void round_row(const float* row, std::size_t size, float largest, std::int8_t* bytes) {
  const float top = std::max(largest, kSmallest);
  const int exponent = exponent_of(top);
  const float power = power_of_two(exponent);
  const float parts = std::min(__builtin_ceilf(top / power * kPartsOfPower), kMostParts);
  const __m512 steps_of_one = _mm512_set1_ps(kRowSteps / (parts * power));
  for (std::size_t d = 0; d < size; d += kLanes) {
    const __mmask16 lanes = lanes_left(size - d);
    const __m512 in_steps = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, row + d), steps_of_one);
    _mm512_mask_cvtsepi32_storeu_epi8(bytes + d, lanes, _mm512_cvtps_epi32(in_steps));
  }
  bytes[size] = static_cast<std::int8_t>(static_cast<int>(parts) - kPartsOrigin);
  bytes[size + 1] = static_cast<std::int8_t>(exponent);
}

}  // namespace

void CacheRows::compute(KernelCall& call) const {
  const auto key = call.input<float>(0), value = call.input<float>(3);
  const std::size_t rank = key.sizes.size(), size = spread_.num_inputs();
  if (rank == 0 || key.size(rank - 1) != size || key.sizes != value.sizes) {
    throw std::invalid_argument("CacheRows: sizes of key, value and stretch do not fit");
  }
  auto sizes = key.sizes;
  sizes.back() += kMagnitudeBytes;
  std::int8_t* const keys = call.output<std::int8_t>(0, sizes).data;
  std::int8_t* const values = call.output<std::int8_t>(1, sizes).data;
  const std::size_t num_rows = key.count(0, rank - 1), row_bytes = size + kMagnitudeBytes;
  const auto write_row = [&](std::size_t row) {
    thread_local Scratch scratch;
    float* const spread = scratch.take<float>(static_cast<std::int64_t>(size + kLanes));
    const float largest = spread_.apply(key.data + row * size, spread);
    round_row(spread, size, largest, keys + row * row_bytes);
    const float* const plain = value.data + row * size;
    round_row(plain, size, largest_of(plain, size), values + row * row_bytes);
  };
  if (num_rows * size <= kSerialElements) {
    for (std::size_t row = 0; row < num_rows; ++row) write_row(row);
  } else {
    call.parallel_for(num_rows, write_row);
  }
}

}  // namespace reader_edge
