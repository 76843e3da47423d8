// Rows of bytes times int8 weights by ARM's matrix products (i8mm): the sums of kernels/products/row_product.cpp, two
// rows of bytes at a time: two rows, or both planes of one. A last row without another is multiplied twice, in as many
// instructions as dot products would take.
#include "products/rows/row_product.h"

#include <algorithm>

#include "kernels/products/row_tiles.h"
#include "lanes/lanes.h"
#include "shared_constants.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

constexpr PackedLayout kLayout{kLanes, 8, 16};
constexpr std::size_t kMostPairs = 3;  // registers hold their sums
constexpr std::size_t kChunk = kLayout.outputs * kLayout.inputs;
constexpr std::size_t kStepChunks = kLayout.depth / kLayout.inputs, kStepLines = kStepChunks * kChunk / kVector;
constexpr std::size_t kLeastAhead = 16 * 1024;  // weights are fetched this many bytes early, or a block of them
static_assert(kChunk == 2 * kVector && kUnsignedOffset == 0);

// A block of the weight, and where its products go. ahead: weights to come.
struct Block {
  const std::int8_t* values;
  const std::int8_t* ahead;
  std::size_t num_steps;
  Floats scales;
  float* output;
  std::size_t num_outputs;
  Lanes outputs;

  Block(const PackedWeight& weight, std::size_t index, const float* all_scales, float* all_outputs)
      : values(weight.block(index)),
        ahead(values + std::max(weight.block_bytes(), kLeastAhead)),
        num_steps(weight.num_chunks() / kStepChunks),
        output(all_outputs + index * kLanes),
        num_outputs(weight.num_outputs()),
        outputs(first_lanes(num_outputs - index * kLanes)) {
    scales = load(all_scales + index * kLanes, outputs);
  }

  void store_row(const QuantizedRows& rows, std::size_t row, Floats product) const {
    store(output + rows.places[row] * num_outputs, product * all(rows.scales[row]), outputs);
  }
};

// Of the weights to come, the vectors that a tile fetches at each step.
struct Lines {
  std::size_t begin, end;
};

// The sums of a pair of rows of bytes to one row of products, or two.
void store_pair(const QuantizedRows& rows, std::size_t pair, const Ints (&sums)[2], const Block& block) {
  Ints of_rows[2];
  set_apart(sums, of_rows);
  const Floats first = number_of(of_rows[0]) * block.scales, second = number_of(of_rows[1]) * block.scales;
  if (rows.num_planes == 2) return block.store_row(rows, pair, first * all(1.0f * kBase) + second);
  const std::size_t row = 2 * pair;
  block.store_row(rows, row, first);
  if (row + 1 < rows.count) block.store_row(rows, row + 1, second);
}

// kPairs pairs of rows of bytes, from `pair` on, times a block; their sums stay in registers.
template <std::size_t kPairs>
void multiply_tile(const QuantizedRows& rows, std::size_t pair, const Block& block, Lines lines) {
  const std::size_t last = rows.count * rows.num_planes - 1;
  const std::uint8_t* values[kPairs][2];
  Ints sums[kPairs][2];
#pragma GCC unroll 3
  for (std::size_t p = 0; p < kPairs; ++p) {
    values[p][0] = rows.values + 2 * (pair + p) * rows.stride;
    values[p][1] = rows.values + std::min(2 * (pair + p) + 1, last) * rows.stride;
    sums[p][0] = sums[p][1] = all(0);
  }
  const std::int8_t* w = block.values;
  const std::int8_t* ahead = block.ahead;
  for (std::size_t k = 0; k < block.num_steps * kLayout.depth; k += kLayout.depth, ahead += kStepLines * kVector) {
#pragma GCC unroll 2
    for (std::size_t chunk = 0; chunk < kStepChunks; ++chunk, w += kChunk) {
      Bytes pairs[kPairs];
#pragma GCC unroll 3
      for (std::size_t p = 0; p < kPairs; ++p) {
        const std::size_t place = k + chunk * kLayout.inputs;
        pairs[p] = two_in_all_quarters(values[p][0] + place, values[p][1] + place);
      }
#pragma GCC unroll 2
      for (std::size_t half = 0; half < 2; ++half) {
        asm volatile("" : "+r"(w));  // compilers that load weights of later products keep sums in memory
        const Bytes weights = load_bytes(w + half * kVector);
#pragma GCC unroll 3
        for (std::size_t p = 0; p < kPairs; ++p) add_matrix_products(sums[p][half], pairs[p], weights);
      }
    }
    for (std::size_t line = lines.begin; line < lines.end; ++line) fetch_early(ahead + line * kVector);
  }
#pragma GCC unroll 3
  for (std::size_t p = 0; p < kPairs; ++p) store_pair(rows, pair + p, sums[p], block);
}

// Tiles of a block fetch as much of a later one together as they read of this one, so that memory stays busy while they
// multiply.
void multiply_blocks(const QuantizedRows& rows, const PackedWeight& weight, std::size_t first, std::size_t last,
                     const float* scales, float* output) {
  const std::size_t num_pairs = (rows.count * rows.num_planes + 1) / 2;
  const std::size_t num_tiles = (num_pairs + kMostPairs - 1) / kMostPairs;
  for (std::size_t index = first; index < last; ++index) {
    const Block block(weight, index, scales, output);
    std::size_t tile = 0;
    for_tiles<kMostPairs>(num_pairs, [&](std::size_t pair, auto height) {
      multiply_tile<height>(rows, pair, block, {kStepLines * tile / num_tiles, kStepLines * (tile + 1) / num_tiles});
      ++tile;
    });
  }
}

}  // namespace

extern const RowKernels row_kernels{2 * kMostPairs, kLayout, multiply_blocks};

}  // namespace reader_edge::READER_EDGE_LANES
