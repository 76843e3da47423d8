// Rows quantised to bytes, times an int8 matrix, scaled back; for processors with AVX-512 VNNI.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reader_edge {

constexpr std::size_t kRowAlignment = 64;  // quantised rows start at multiples of it, so that whole vectors are read
constexpr std::size_t kChunk = 16;         // bytes of a row that lie together
constexpr std::size_t kGroupRows = 4;      // rows whose chunks take turns, and are multiplied by one instruction
constexpr std::size_t kTileRows = 24;      // rows that share each weight read
constexpr std::size_t kTileOutputs = 4;

// Quantised rows, stored unsigned as value + 128, and a scale for each row. `stride` bytes a row: K, rounded up and
// filled with zeros, in chunks `step` apart. A single row lies in one piece; several lie in groups, each
// (stride / kChunk, kGroupRows, kChunk).
struct QuantizedRows {
  const std::uint8_t* values;
  std::size_t stride;
  std::size_t step;
  const float* scales;  // readable up to a whole group
  std::size_t count;

  static std::size_t step_for(std::size_t num_rows) { return num_rows == 1 ? kChunk : kGroupRows * kChunk; }
  std::size_t start_of(std::size_t row) const {
    return row / kGroupRows * kGroupRows * stride + row % kGroupRows * kChunk;
  }
};

// Outputs [first, last) of a matrix with one row of inputs, one scale and one sum of its row for each output.
struct WeightRows {
  const std::int8_t* values;
  std::size_t num_inputs;
  const float* scales;
  const std::int32_t* sums;
  std::size_t first;
  std::size_t last;
};

// One row of floats to `stride` bytes in chunks `step` apart; returns its scale.
float quantize_row(const float* row, std::size_t num_inputs, std::uint8_t* values, std::size_t stride,
                   std::size_t step);

// The sum of int8 values.
std::int32_t row_sum(const std::int8_t* values, std::size_t count);

// output (R, stride): integer product * weight scale * row scale, rounded after each factor.
void multiply_rows(const QuantizedRows& rows, const WeightRows& weight, float* output, std::size_t stride);

}  // namespace reader_edge
