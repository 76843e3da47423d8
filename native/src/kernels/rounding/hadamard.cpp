// The fast Walsh-Hadamard transform of blocks of a row, by sums and differences.
#include "lanes/lanes.h"
#include "rounding/hadamard.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

template <int kStride>
struct Signs {
  alignas(kVector) float of[kLanes];

  constexpr Signs() : of() {
    for (std::size_t lane = 0; lane < kLanes; ++lane) of[lane] = (lane & kStride) != 0 ? -1.0f : 1.0f;
  }
};

template <int kStride>
constexpr Signs<kStride> kSigns;

// Sums and differences of lanes `stride` apart: the upper of two lanes changes its sign first.
template <int kStride>
Floats lane_butterflies(Floats x) {
  return fma(x, load(kSigns<kStride>.of), swapped<kStride>(x));
}

// Blocks of kBlock numbers times the matrix; returns the largest magnitudes. Numbers raised by `height` are rounded to as
// many bits as leave every sum exact, so that their order is free. One vector holds as many blocks as it can, and a block
// as many vectors as it needs.
template <std::size_t kBlock>
Floats rotate_blocks(float* row, std::size_t num_inputs, Floats height) {
  constexpr std::size_t kVectors = kBlock > kLanes ? kBlock / kLanes : 1;
  Floats top = all(0.0f);
  for (std::size_t k = 0; k < num_inputs; k += kVectors * kLanes) {
    Floats sums[kVectors];
#pragma GCC unroll 16
    for (std::size_t v = 0; v < kVectors; ++v) {
      Floats x = load(row + k + v * kLanes) + height - height;
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
        const Floats lower = sums[v], upper = sums[v + stride];
        sums[v] = lower + upper;
        sums[v + stride] = lower - upper;
      }
    }
#pragma GCC unroll 16
    for (std::size_t v = 0; v < kVectors; ++v) {
      top = max(top, magnitude(sums[v]));
      store(row + k + v * kLanes, sums[v]);
    }
  }
  return top;
}

Floats rotate_blocks(std::size_t block, float* row, std::size_t num_inputs, Floats height) {
  switch (block) {
    case 1: return rotate_blocks<1>(row, num_inputs, height);
    case 2: return rotate_blocks<2>(row, num_inputs, height);
    case 4: return rotate_blocks<4>(row, num_inputs, height);
    case 8: return rotate_blocks<8>(row, num_inputs, height);
    case 16: return rotate_blocks<16>(row, num_inputs, height);
    case 32: return rotate_blocks<32>(row, num_inputs, height);
    case 64: return rotate_blocks<64>(row, num_inputs, height);
    case 128: return rotate_blocks<128>(row, num_inputs, height);
    default: return rotate_blocks<256>(row, num_inputs, height);
  }
}

float apply(const float* row, const float* smoothing, std::size_t num_inputs, std::size_t block, float* rotated) {
  Floats magnitudes = all(0.0f);
  for (std::size_t k = 0; k < num_inputs; k += kLanes) {
    const Lanes lanes = first_lanes(num_inputs - k);
    const Floats x = load(row + k, lanes) * load(smoothing + k, lanes);
    magnitudes = max(magnitudes, magnitude(x));
    store(rotated + k, x);
  }
  const float height = largest_of(magnitudes) * (2.0f * static_cast<float>(block));
  return largest_of(rotate_blocks(block, rotated, num_inputs, all(height)));
}

}  // namespace

extern const HadamardKernels hadamard_kernels{apply};

}  // namespace reader_edge::READER_EDGE_LANES
