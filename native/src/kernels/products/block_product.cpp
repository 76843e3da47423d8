// Rows of bytes times packed 4-bit weights in blocks. Halves of bytes, from 0 to 15, are multiplied by a row and summed
// over a block, whose sum fits 16 bits, since what it begins with takes 8 from each half; then it is scaled and added
// to the sum of the blocks. All are integers, exact in any order.
#include "products/blocks/block_product.h"

#include "kernels/products/block_lanes.h"
#include "kernels/products/row_tiles.h"
#include "kernels/products/unpacked_product.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

static_assert(kPanelVectors == 2);

// kRows rows from `row` on times a panel, with the sums of a block in registers.
template <std::size_t kRows>
void multiply_blocks(const BlockRows& rows, std::size_t row, const BlockWeight& weight, std::size_t panel,
                     const PanelOutputs& outputs) {
  constexpr std::size_t kVectors = kBlockBytes / 4;
  const std::size_t num_blocks = weight.num_blocks();
  const std::int8_t* packed = weight.values(panel);
  const std::int8_t* scales = weight.scales(panel);
  const std::int32_t* starts = rows.starts + row * num_blocks;
  RowPointers<kRows> values(rows.values + row * rows.stride, rows.stride);
  Ints totals[kRows][kPanelVectors];
#pragma GCC unroll 10
  for (std::size_t m = 0; m < kRows; ++m) totals[m][0] = totals[m][1] = all(0);
  for (std::size_t block = 0; block < num_blocks; ++block) {
    BlockSums sums[kRows][kPanelVectors];
#pragma GCC unroll 10
    for (std::size_t m = 0; m < kRows; ++m) sums[m][0] = sums[m][1] = block_start(starts[m * num_blocks + block]);
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v, packed += kPanelVectors * kVector) {
      for (std::size_t i = 0; i < kPanelVectors; ++i) fetch_early(packed + i * kVector + kWeightsAhead);
      const UnpackedHalves halves(packed);
#pragma GCC unroll 2
      for (std::size_t half = 0; half < 2; ++half) {
#pragma GCC unroll 10
        for (std::size_t m = 0; m < kRows; ++m) {
          const Bytes four = values.four(m, v * 8 + half * 4);
          add_codes(sums[m][0], halves.of[half][0], four);
          add_codes(sums[m][1], halves.of[half][1], four);
        }
      }
    }
#pragma GCC unroll 2
    for (std::size_t i = 0; i < kPanelVectors; ++i) {
      const Ints scale = widened(scales + i * kLanes);
#pragma GCC unroll 10
      for (std::size_t m = 0; m < kRows; ++m) add_scaled(totals[m][i], sums[m][i], scale);
    }
    scales += kPanelOutputs;
    values.advance(kBlockInputs);
  }
#pragma GCC unroll 10
  for (std::size_t m = 0; m < kRows; ++m) outputs.store_row(rows.places[row + m], rows.scales[row + m], totals[m]);
}

std::int32_t order_blocks(std::int8_t* values, std::size_t num_blocks, std::int32_t* starts) {
  std::int32_t sum = 0;
  for (std::size_t block = 0; block < num_blocks; ++block) {
    sum += order_block(values + block * kBlockInputs, starts[block]);
  }
  return sum * (kUnsignedOffset / 8);
}

void multiply_panels(const BlockRows& rows, const BlockWeight& weight, std::size_t first, std::size_t last,
                     const float* scales, float* output) {
  for (std::size_t panel = first; panel < last; ++panel) {
    const PanelOutputs outputs(output, weight.num_outputs(), panel, scales);
    if (rows.count >= kUnpackRows) {
      multiply_unpacked(rows, weight, panel, outputs);
      continue;
    }
    for_tiles<kBlockTile>(rows.count, [&](std::size_t row, auto height) {
      multiply_blocks<height>(rows, row, weight, panel, outputs);
    });
  }
}

}  // namespace

extern const BlockKernels block_kernels{kUnpackedTile, order_blocks, multiply_panels};

}  // namespace reader_edge::READER_EDGE_LANES
