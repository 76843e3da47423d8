// Rows rounded in blocks, times a matrix in the blocks of a GGUF file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "products/gguf/gguf_weight.h"

namespace reader_edge {

// Rows (R, stride) of bytes, with a scale for each block (R, blocks), as many inputs as a block of the weight has.
// offsets (R, blocks): what each block's sum begins with, so that codes count from the type's zero on. sums (R, blocks):
// each block's bytes added up, times its scale; where the type has minima. places (R,): the rows of the output that theirs
// go to.
struct GgufRows {
  std::int8_t* values;
  std::size_t stride;
  float* scales;
  std::int32_t* offsets;
  float* sums;
  const std::size_t* places;
  std::size_t count, num_blocks;

  GgufRows from(std::size_t first, std::size_t many) const {
    return {values + first * stride,     stride, scales + first * num_blocks, offsets + first * num_blocks,
            sums + first * num_blocks, places + first, many, num_blocks};
  }
};

struct GgufKernels {
  std::size_t tile_rows;    // that share each read of the weights
  std::size_t wide_panels;  // that a tile of many rows reads side by side

  // Rounds row `index` of `rows`, its blocks one by one: the largest number of each becomes 127 steps.
  void (*round_blocks)(const float* row, const GgufType& type, const GgufRows& rows, std::size_t index);

  // Outputs of panels [first, last) of the weight to output (..., J).
  void (*multiply)(const GgufRows& rows, const GgufWeight& weight, std::size_t first, std::size_t last, float* output);
};

}  // namespace reader_edge
