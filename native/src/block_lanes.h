// What products with 4-bit weights share: each lane of 32 bits holds four inputs of an output, and the instruction behind
// them multiplies unsigned by signed bytes, four to a lane, and adds them up.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "block_weight.h"

namespace reader_edge {

constexpr std::size_t kVector = 64;
constexpr std::size_t kLanes = 16;
constexpr std::size_t kPanelVectors = kPanelOutputs / kLanes;
constexpr std::size_t kWeightsAhead = 16 * 1024;  // weights are fetched this many bytes early

// The instruction itself: compilers copy sums about where it is an intrinsic.
inline void add_products(__m512i& sum, __m512i weights, __m512i values) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(values));
}

// kRows rows of bytes, `stride` apart, read side by side. Each pointer serves four: there are not registers enough for
// an address of each row.
template <std::size_t kRows>
class RowPointers {
 public:
  RowPointers(const std::int8_t* values, std::size_t stride) : stride_(stride) {
    for (std::size_t group = 0; group < kGroups; ++group) {
      groups_[group] = values + group * kGroupRows * stride;
      asm("" : "+r"(groups_[group]));  // compilers that know what they have in common make addresses of it
    }
  }

  // Four bytes of row m, `offset` bytes on, in every lane.
  __m512i four(std::size_t m, std::size_t offset) const {
    std::int32_t bytes;
    std::memcpy(&bytes, groups_[m / kGroupRows] + m % kGroupRows * stride_ + offset, sizeof bytes);
    return _mm512_set1_epi32(bytes);
  }

  void advance(std::size_t count) {
    for (auto& group : groups_) group += count;
  }

 private:
  static constexpr std::size_t kGroupRows = 4, kGroups = (kRows + kGroupRows - 1) / kGroupRows;
  const std::int8_t* groups_[kGroups];
  std::size_t stride_;
};

// Vectors of four inputs each of a panel's outputs, from packed weights: inputs in low halves, and in high halves.
struct UnpackedHalves {
  __m512i of[2][kPanelVectors];

  explicit UnpackedHalves(const std::int8_t* packed) {
    const __m512i low_half = _mm512_set1_epi8(0x0f);
#pragma GCC unroll 2
    for (std::size_t i = 0; i < kPanelVectors; ++i) {
      const __m512i bytes = _mm512_load_si512(packed + i * kVector);
      of[0][i] = _mm512_and_si512(bytes, low_half);
      of[1][i] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low_half);
    }
  }
};

// A block's scales of 16 outputs, in 32 bits each.
inline __m512i block_scales(const std::int8_t* scales) {
  return _mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(scales)));
}

// Where the products with a panel go, and the outputs' scales (J,) that they are multiplied by.
class PanelOutputs {
 public:
  PanelOutputs(float* output, std::size_t num_outputs, std::size_t panel, const float* scales)
      : first_(output + panel * kPanelOutputs), num_outputs_(num_outputs) {
    for (std::size_t i = 0; i < kPanelVectors; ++i) {
      const std::size_t begin = panel * kPanelOutputs + i * kLanes;
      const std::size_t left = num_outputs > begin ? num_outputs - begin : 0;
      masks_[i] = left >= kLanes ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
      scales_[i] = _mm512_maskz_loadu_ps(masks_[i], scales + begin);
    }
  }

  void store(std::size_t row, float row_scale, const __m512i (&sums)[kPanelVectors]) const {
    for (std::size_t i = 0; i < kPanelVectors; ++i) {
      const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[i]), scales_[i]);
      const __m512 result = _mm512_mul_ps(product, _mm512_set1_ps(row_scale));
      _mm512_mask_storeu_ps(first_ + row * num_outputs_ + i * kLanes, masks_[i], result);
    }
  }

 private:
  float* first_;
  std::size_t num_outputs_;
  __m512 scales_[kPanelVectors];
  __mmask16 masks_[kPanelVectors];
};

}  // namespace reader_edge
