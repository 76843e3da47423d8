// Rows quantised to bytes, times an int8 matrix, scaled back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "packed_weight.h"
#include "shared_constants.h"

namespace reader_edge {

// Rows (R, planes, stride) of bytes, raised as the set's products take them, and a scale for each row. Of two planes the
// first counts 256 times as much.
struct QuantizedRows {
  const std::uint8_t* values;
  std::size_t stride;
  const float* scales;
  std::size_t count, num_planes;
};

struct RowKernels {
  std::size_t tile_rows;  // rows of bytes that share each read of the weights

  // One row of floats to `stride` bytes, a multiple of kChunk; returns its scale.
  float (*quantize)(const float* row, std::size_t num_inputs, std::uint8_t* values, std::size_t stride);

  // The same of a row whose largest magnitude is known, to one plane, signed or raised, and to two. What is returned is
  // that magnitude: the weights' scales are those of a step, kSteps or kSteps16 to the largest.
  float (*round)(const float* row, float largest, std::size_t num_inputs, std::int8_t* values, std::size_t stride);
  float (*round_raised)(const float* row, float largest, std::size_t num_inputs, std::uint8_t* values,
                        std::size_t stride);
  float (*round_16)(const float* row, float largest, std::size_t num_inputs, std::int8_t* high, std::int8_t* low,
                    std::size_t stride);
  float (*round_16_raised)(const float* row, float largest, std::size_t num_inputs, std::uint8_t* high,
                           std::uint8_t* low, std::size_t stride);

  // Outputs of one block of the weight to output (R, J): integer product * weight scale * row scale, rounded after each
  // factor; of two planes, 256 * the first + the second in place of the product with the weight scale. scales: of all
  // outputs (J,).
  void (*multiply_block)(const QuantizedRows& rows, const PackedWeight& weight, std::size_t block, const float* scales,
                         float* output);
};

}  // namespace reader_edge
