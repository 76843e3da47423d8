// Rows quantised to bytes, times an int8 matrix, scaled back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "products/rows/packed_weight.h"
#include "shared_constants.h"

namespace reader_edge {

// Rows (R, planes, stride) of bytes, raised as the set's products take them, and a scale for each row. Of two planes the
// first counts 256 times as much. places (R,): the rows of the output that theirs go to.
struct QuantizedRows {
  std::uint8_t* values;
  std::size_t stride;
  float* scales;
  const std::size_t* places;
  std::size_t count, num_planes;

  QuantizedRows from(std::size_t first, std::size_t many) const {
    return {values + first * num_planes * stride, stride, scales + first, places + first, many, num_planes};
  }
};

struct RowKernels {
  std::size_t tile_rows;  // rows of bytes that share each read of the weights
  PackedLayout layout;    // of the weights

  // Outputs of blocks [first, last) of the weight to output (..., J): integer product * weight scale * row scale, rounded
  // after each factor; of two planes, 256 * the first + the second in place of the product with the weight scale.
  // scales: of all outputs (J,).
  void (*multiply_blocks)(const QuantizedRows& rows, const PackedWeight& weight, std::size_t first, std::size_t last,
                          const float* scales, float* output);
};

}  // namespace reader_edge
