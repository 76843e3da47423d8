#include "spread.h"

#include <immintrin.h>

#include <cstring>
#include <stdexcept>

#include "scratch.h"

namespace reader_edge {
namespace {

constexpr std::size_t kLanes = 16;
constexpr std::size_t kSerialElements = 16 * 1024;  // fewer are not worth waking threads

__mmask16 lanes_left(std::size_t left) {
  return left >= kLanes ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
}

// Sums and differences of lanes `stride` apart: the upper of two lanes changes its sign first.
template <int kStride>
__m512 lane_butterflies(__m512 x) {
  constexpr __mmask16 kUpper = kStride == 1 ? 0xaaaa : kStride == 2 ? 0xcccc : kStride == 4 ? 0xf0f0 : 0xff00;
  const __m512 signs = _mm512_mask_blend_ps(kUpper, _mm512_set1_ps(1.0f), _mm512_set1_ps(-1.0f));
  __m512 partners;
  if constexpr (kStride == 1) partners = _mm512_permute_ps(x, 0xb1);
  if constexpr (kStride == 2) partners = _mm512_permute_ps(x, 0x4e);
  if constexpr (kStride == 4) partners = _mm512_shuffle_f32x4(x, x, 0xb1);
  if constexpr (kStride == 8) partners = _mm512_shuffle_f32x4(x, x, 0x4e);
  return _mm512_fmadd_ps(x, signs, partners);
}

// Blocks of kBlock numbers times the matrix; returns the largest magnitudes. Numbers raised by `height` are rounded to as
// many bits as leave every sum exact, so that their order is free. One register holds as many blocks as it can, and a
// block as many registers as it needs.
template <std::size_t kBlock>
__m512 spread_blocks(float* row, std::size_t num_inputs, __m512 height) {
  constexpr std::size_t kVectors = kBlock > kLanes ? kBlock / kLanes : 1;
  __m512 largest = _mm512_setzero_ps();
  for (std::size_t k = 0; k < num_inputs; k += kVectors * kLanes) {
    __m512 sums[kVectors];
#pragma GCC unroll 16
    for (std::size_t v = 0; v < kVectors; ++v) {
      __m512 x = _mm512_sub_ps(_mm512_add_ps(_mm512_loadu_ps(row + k + v * kLanes), height), height);
      if constexpr (kBlock > 1) x = lane_butterflies<1>(x);
      if constexpr (kBlock > 2) x = lane_butterflies<2>(x);
      if constexpr (kBlock > 4) x = lane_butterflies<4>(x);
      if constexpr (kBlock > 8) x = lane_butterflies<8>(x);
      sums[v] = x;
    }
#pragma GCC unroll 4
    for (std::size_t stride = 1; stride < kVectors; stride *= 2) {
#pragma GCC unroll 16
      for (std::size_t v = 0; v < kVectors; ++v) {
        if (v & stride) continue;
        const __m512 lower = sums[v], upper = sums[v + stride];
        sums[v] = _mm512_add_ps(lower, upper);
        sums[v + stride] = _mm512_sub_ps(lower, upper);
      }
    }
#pragma GCC unroll 16
    for (std::size_t v = 0; v < kVectors; ++v) {
      largest = _mm512_max_ps(largest, _mm512_abs_ps(sums[v]));
      _mm512_storeu_ps(row + k + v * kLanes, sums[v]);
    }
  }
  return largest;
}

__m512 spread_blocks(std::size_t block, float* row, std::size_t num_inputs, __m512 height) {
  switch (block) {
    case 1: return spread_blocks<1>(row, num_inputs, height);
    case 2: return spread_blocks<2>(row, num_inputs, height);
    case 4: return spread_blocks<4>(row, num_inputs, height);
    case 8: return spread_blocks<8>(row, num_inputs, height);
    case 16: return spread_blocks<16>(row, num_inputs, height);
    case 32: return spread_blocks<32>(row, num_inputs, height);
    case 64: return spread_blocks<64>(row, num_inputs, height);
    case 128: return spread_blocks<128>(row, num_inputs, height);
    default: return spread_blocks<256>(row, num_inputs, height);
  }
}

bool is_hadamard(const float* matrix, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t j = 0; j < size; ++j) {
      if (matrix[i * size + j] != (__builtin_parityll(i & j) ? -1.0f : 1.0f)) return false;
    }
  }
  return true;
}

}  // namespace

Spread::Spread(const KernelAttributes& attributes) {
  const auto stretch = attributes.constant<float>(1);
  const auto hadamard = attributes.constant<float>(2);
  if (stretch.sizes.size() != 1 || stretch.size(0) == 0 || hadamard.sizes.size() != 2) {
    throw std::invalid_argument("Spread: its stretch needs one axis and its matrix two");
  }
  stretch_ = stretch.data;
  num_inputs_ = stretch.size(0);
  block_ = hadamard.size(0);
  const bool is_power = block_ != 0 && (block_ & (block_ - 1)) == 0;
  if (!is_power || block_ > kMaxBlock || num_inputs_ % block_ != 0 || hadamard.size(1) != block_ ||
      !is_hadamard(hadamard.data, block_)) {
    throw std::invalid_argument("Spread: its matrix is no Hadamard matrix of a size that divides the inputs");
  }
}

float Spread::apply(const float* row, float* spread) const {
  __m512 magnitudes = _mm512_setzero_ps();
  for (std::size_t k = 0; k < num_inputs_; k += kLanes) {
    const __mmask16 mask = lanes_left(num_inputs_ - k);
    const __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, row + k), _mm512_maskz_loadu_ps(mask, stretch_ + k));
    magnitudes = _mm512_max_ps(magnitudes, _mm512_abs_ps(x));
    _mm512_storeu_ps(spread + k, x);
  }
  const float height = _mm512_reduce_max_ps(magnitudes) * (2.0f * static_cast<float>(block_));
  return _mm512_reduce_max_ps(spread_blocks(block_, spread, num_inputs_, _mm512_set1_ps(height)));
}

void SpreadRows::compute(KernelCall& call) const {
  const auto rows = call.input<float>(0);
  const std::size_t rank = rows.sizes.size(), num_inputs = spread_.num_inputs();
  if (rank == 0 || rows.size(rank - 1) != num_inputs) {
    throw std::invalid_argument("SpreadRows: sizes of rows and stretch do not fit");
  }
  float* const output = call.output<float>(0, rows.sizes).data;
  const std::size_t num_rows = rows.count(0, rank - 1);
  const auto spread_row = [&](std::size_t row) {
    thread_local Scratch<float> scratch;
    float* const spread = scratch.take(static_cast<std::int64_t>(num_inputs + kLanes));
    spread_.apply(rows.data + row * num_inputs, spread);
    std::memcpy(output + row * num_inputs, spread, num_inputs * sizeof(float));
  };
  if (num_rows * num_inputs <= kSerialElements) {
    for (std::size_t row = 0; row < num_rows; ++row) spread_row(row);
  } else {
    call.parallel_for(num_rows, spread_row);
  }
}

}  // namespace reader_edge
