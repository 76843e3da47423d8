// Rows rounded to bytes, times a 4-bit matrix in blocks, scaled back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "products/blocks/block_weight.h"

namespace reader_edge {

constexpr std::size_t kSliceBlocks = 20;  // unpacked at a time, at most: they and some rows stay in 32 kB of cache

// Rows (R, stride) of bytes, zeros beyond K; of each eight, those at even places come first, as the low halves of the
// weights do. starts (R, blocks): what each block's sum begins with, so that halves of bytes count from -8 on, in a form
// of the set's own. totals (R,): what a whole row's sum begins with where weights are unpacked. scales: of each row.
// places (R,): the rows of the output that theirs go to.
struct BlockRows {
  std::int8_t* values;
  std::size_t stride;
  std::int32_t *starts, *totals;
  float* scales;
  const std::size_t* places;
  std::size_t count, num_blocks;

  BlockRows from(std::size_t first, std::size_t many) const {
    return {values + first * stride, stride,         starts + first * num_blocks, totals + first,
            scales + first,          places + first, many,                        num_blocks};
  }
};

struct BlockKernels {
  std::size_t tile_rows;  // that share each read of the weights

  // Brings a row of num_blocks * kBlockInputs bytes into the order of BlockRows, and finds its starts; returns its total.
  std::int32_t (*order_blocks)(std::int8_t* values, std::size_t num_blocks, std::int32_t* starts);

  // Outputs of panels [first, last) of the weight to output (..., J): integer product * scale of the output * row scale,
  // rounded after each factor. scales: of all outputs (J,).
  void (*multiply_panels)(const BlockRows& rows, const BlockWeight& weight, std::size_t first, std::size_t last,
                          const float* scales, float* output);
};

}  // namespace reader_edge
