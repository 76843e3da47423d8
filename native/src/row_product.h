// Rows quantised to bytes, times an int8 matrix, scaled back; for processors with AVX-512 VNNI.
#pragma once

#include <cstddef>
#include <cstdint>

#include "packed_weight.h"

namespace reader_edge {

constexpr std::size_t kTileRows = 6;  // rows that share each weight read

// Quantised rows (R, stride), stored unsigned as value + 128, zeros beyond K, and a scale for each row.
struct QuantizedRows {
  const std::uint8_t* values;
  std::size_t stride;
  const float* scales;
  std::size_t count;
};

// One row of floats to `stride` bytes, a multiple of kChunk; returns its scale.
float quantize_row(const float* row, std::size_t num_inputs, std::uint8_t* values, std::size_t stride);

// Outputs of one block of the weight to output (R, J): integer product * weight scale * row scale, rounded after each
// factor. scales: of all outputs (J,).
void multiply_block(const QuantizedRows& rows, const PackedWeight& weight, std::size_t block, const float* scales,
                    float* output);

}  // namespace reader_edge
