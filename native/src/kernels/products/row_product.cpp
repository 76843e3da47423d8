// Rows of bytes times int8 weights: products of bytes, four to a lane, added up in 32 bits. Where a row's bytes were
// raised to be unsigned, the sums of the weights take that out again. Sums of 32-bit integers are exact in any order.
#include "products/rows/row_product.h"

#include <algorithm>
#include <utility>

#include "lanes/lanes.h"
#include "shared_constants.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

constexpr PackedLayout kLayout{16, 16, 16};
constexpr std::size_t kStep = kLayout.outputs * kLayout.inputs, kStepVectors = kStep / kVector;
constexpr std::size_t kLeastAhead = 16 * 1024;  // weights are fetched this many bytes early, or a block of them

// What a tile reads beside its rows. ahead: weights to come, of which it fetches kFetched vectors a step.
struct Block {
  const std::int8_t* values;
  const std::int8_t* ahead;
  std::size_t num_chunks;
  Floats scales;
  Ints corrections;  // what raised rows added to the sums
  Lanes outputs;
};

// The sums of a row, without what raising it added, times the weights' scales.
inline Floats scaled_sum(const Ints (&sums)[kStepVectors], const Block& block) {
  return number_of(quarter_sums(sums) - block.corrections) * block.scales;
}

// Adds kByteRows rows of bytes times kSumVectors vectors of each step, from `vector` on, to their sums, in registers. Of
// rows in planes, every other holds bytes of any value.
template <int kByteRows, int kPlanes, std::size_t kFetched>
[[gnu::always_inline]] inline void add_steps(const std::uint8_t* rows, std::size_t stride, const Block& block,
                                             int vector, Ints (&sums)[kByteRows][kStepVectors]) {
  const std::int8_t* w = block.values + vector * kVector;
  const std::int8_t* ahead = block.ahead;
  for (std::size_t chunk = 0; chunk < block.num_chunks; ++chunk, w += kStep, ahead += kStep, rows += kLayout.inputs) {
    Bytes weights[kSumVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kSumVectors; ++v) weights[v] = load_bytes(w + v * kVector);
    if (vector == 0) {  // after the weights that are wanted now, which would wait for these
#pragma GCC unroll 4
      for (std::size_t i = 0; i < kFetched; ++i) fetch_early(ahead + i * kVector);
    }
#pragma GCC unroll 6
    for (int m = 0; m < kByteRows; ++m) {
      const Bytes values = in_all_quarters(rows + m * stride);
#pragma GCC unroll 4
      for (int v = 0; v < kSumVectors; ++v) {
        if (m % kPlanes == 0) {
          add_dot_products(sums[m][vector + v], values, weights[v]);
        } else {
          add_full_range_dot_products(sums[m][vector + v], values, weights[v]);
        }
      }
    }
  }
}

// kRows rows from `row` on, of kPlanes rows of bytes each, times a block.
template <int kRows, int kPlanes, std::size_t kFetched>
void multiply_tile(const QuantizedRows& rows, std::size_t row, const Block& block, float* output, std::size_t stride) {
  constexpr int kByteRows = kRows * kPlanes;
  const std::uint8_t* const values = rows.values + row * kPlanes * rows.stride;
  Ints sums[kByteRows][kStepVectors];
#pragma GCC unroll 6
  for (int m = 0; m < kByteRows; ++m) sums[m][0] = sums[m][1] = sums[m][2] = sums[m][3] = all(0);
#pragma GCC unroll 4
  for (int vector = 0; vector < static_cast<int>(kStepVectors); vector += kSumVectors) {
    add_steps<kByteRows, kPlanes, kFetched>(values, rows.stride, block, vector, sums);
  }
#pragma GCC unroll 6
  for (int m = 0; m < kRows; ++m) {
    Floats product = scaled_sum(sums[m * kPlanes], block);
    if constexpr (kPlanes == 2) product = product * all(1.0f * kBase) + scaled_sum(sums[m * kPlanes + 1], block);
    store(output + rows.places[row + m] * stride, product * all(rows.scales[row + m]), block.outputs);
  }
}

using Tile = void (*)(const QuantizedRows&, std::size_t, const Block&, float*, std::size_t);

template <int kPlanes, std::size_t kFetched, std::size_t... kBefore>
Tile tile_of(std::size_t height, std::index_sequence<kBefore...>) {
  static constexpr Tile kTiles[] = {multiply_tile<kBefore + 1, kPlanes, kFetched>...};
  return kTiles[height - 1];
}

template <std::size_t kFetched>
Tile tile_of(std::size_t num_planes, std::size_t height) {
  return num_planes == 1 ? tile_of<1, kFetched>(height, std::make_index_sequence<kRowTile>())
                         : tile_of<2, kFetched>(height, std::make_index_sequence<kRowTile / 2>());
}

void multiply_block(const QuantizedRows& rows, const PackedWeight& weight, std::size_t index, const float* scales,
                    float* output) {
  const std::size_t begin = index * kLayout.outputs;
  const Lanes outputs = first_lanes(weight.num_outputs() - begin);
  const Ints corrections = kUnsignedOffset == 0 ? all(0) : shifted_left<7>(load(weight.sums(index)));
  static_assert(kUnsignedOffset == 0 || kUnsignedOffset == 1 << 7);
  Block block{weight.block(index), weight.block(index) + std::max(weight.block_bytes(), kLeastAhead),
              weight.num_chunks(), load(scales + begin, outputs), corrections, outputs};
  // Tiles of equal height, or nearly so. Together they fetch as much of a later block as they read of this one, so that
  // memory stays busy while they multiply.
  const std::size_t tile_rows = kRowTile / rows.num_planes;
  const std::size_t num_tiles = (rows.count + tile_rows - 1) / tile_rows;
  const std::size_t fetched = num_tiles == 1 ? kStepVectors : num_tiles < kStepVectors ? 2 : 1;
  std::size_t row = 0;
  for (std::size_t tile = 0; tile < num_tiles; ++tile) {
    const std::size_t height = (rows.count - row + num_tiles - tile - 1) / (num_tiles - tile);
    const Tile multiply = fetched == kStepVectors ? tile_of<kStepVectors>(rows.num_planes, height)
                          : fetched == 2          ? tile_of<2>(rows.num_planes, height)
                                                  : tile_of<1>(rows.num_planes, height);
    multiply(rows, row, block, output + begin, weight.num_outputs());
    if (tile + 1 < kStepVectors / fetched) block.ahead += fetched * kVector;
    row += height;
  }
}

void multiply_blocks(const QuantizedRows& rows, const PackedWeight& weight, std::size_t first, std::size_t last,
                     const float* scales, float* output) {
  for (std::size_t index = first; index < last; ++index) multiply_block(rows, weight, index, scales, output);
}

}  // namespace

extern const RowKernels row_kernels{kRowTile, kLayout, multiply_blocks};

}  // namespace reader_edge::READER_EDGE_LANES
