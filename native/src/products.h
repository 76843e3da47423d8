// Integer products for one kind of processor, chosen when the library is loaded.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reader_edge {

// Rows are padded with zeros to a multiple of this many values, so that kernels read whole vectors.
constexpr std::size_t kRowPadding = 64;
constexpr int kZeroPoint = 128;  // activations are stored unsigned: value + 128

// Quantised rows: values (R, stride) and a scale for each.
struct QuantizedRows {
  const std::uint8_t* values;
  std::size_t stride;
  const float* scales;
  std::size_t count;
};

// A matrix with one row of K inputs for each output, outputs [first, last) of which are wanted.
struct WeightRows {
  const std::int8_t* values;
  std::size_t num_inputs;
  const float* scales;
  const std::int32_t* sums;
  std::size_t first;
  std::size_t last;
};

struct ProductKernels {
  const char* name;
  // One row of `num_inputs` floats to unsigned bytes; returns its scale. Padding is set to zero.
  float (*quantize)(const float* row, std::size_t num_inputs, std::uint8_t* values, std::size_t stride);
  // output (R, stride): row r, output j = integer product * weight scale * row scale, rounded after each factor.
  void (*multiply)(const QuantizedRows& rows, const WeightRows& weight, float* output, std::size_t stride);
};

const ProductKernels& product_kernels();

}  // namespace reader_edge
