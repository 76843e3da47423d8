// Rows quantised to bytes, times an int8 matrix, scaled back; for processors with AVX-512 VNNI.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reader_edge {

constexpr std::size_t kRowAlignment = 64;  // quantised rows start at multiples of it, so that whole vectors are read
constexpr std::size_t kTileRows = 6;       // rows that share each weight read
constexpr std::size_t kTileOutputs = 4;

// Quantised rows: values (R, stride), stored unsigned as value + 128, and a scale for each row.
struct QuantizedRows {
  const std::uint8_t* values;
  std::size_t stride;
  const float* scales;
  std::size_t count;
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

// One row of floats to bytes, padded with zeros up to `stride`; returns its scale.
float quantize_row(const float* row, std::size_t num_inputs, std::uint8_t* values, std::size_t stride);

// The sum of int8 values.
std::int32_t row_sum(const std::int8_t* values, std::size_t count);

// output (R, stride): integer product * weight scale * row scale, rounded after each factor.
void multiply_rows(const QuantizedRows& rows, const WeightRows& weight, float* output, std::size_t stride);

}  // namespace reader_edge
