// Rows times some blocks of a panel of a 4-bit matrix, whose weights are unpacked to bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/products/block_lanes.h"
#include "products/blocks/block_product.h"

namespace reader_edge::READER_EDGE_LANES {

// A run of a panel's blocks: (inputs / 4, kPanelOutputs, 4) bytes, raised, and zeros up to a multiple of 64 inputs. ahead:
// packed weights to come. totals (R, kPanelVectors): the rows' sums so far.
struct Slice {
  const std::int8_t* unpacked;
  const std::int8_t* ahead;
  std::size_t first_block, num_blocks;
  bool is_last;
  Ints* totals;
};

// What rows' totals begin with, before a panel's first slice is added: in memory, for tiles, and because GCC 12 keeps sums
// in memory, too, which begin there at times only.
inline void begin_totals(const BlockRows& rows, const Slice& slice) {
  for (std::size_t row = 0; row < rows.count && slice.first_block == 0; ++row) {
    for (std::size_t i = 0; i < kPanelVectors; ++i) slice.totals[row * kPanelVectors + i] = all(rows.totals[row]);
  }
}

// Adds all rows times a slice to their totals, or to output where it is the last.
void multiply_slice(const BlockRows& rows, const Slice& slice, const PanelOutputs& outputs);

}  // namespace reader_edge::READER_EDGE_LANES
