// Rounds rows of fp32 numbers to bytes, by their largest magnitude, before they are multiplied by quantised weights.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reader_edge {

struct RowRounding {
  // One row of floats to `stride` bytes, a multiple of 16; returns its scale.
  float (*quantize)(const float* row, std::size_t num_inputs, std::uint8_t* values, std::size_t stride);

  // The same of a row whose largest magnitude is known, to one plane, signed or raised, and to two, raised. What is returned is
  // that magnitude: the weights' scales are those of a step, kSteps or kSteps16 to the largest.
  float (*round)(const float* row, float largest, std::size_t num_inputs, std::int8_t* values, std::size_t stride);
  float (*round_raised)(const float* row, float largest, std::size_t num_inputs, std::uint8_t* values,
                        std::size_t stride);
  float (*round_16_raised)(const float* row, float largest, std::size_t num_inputs, std::uint8_t* high,
                           std::uint8_t* low, std::size_t stride);
};

}  // namespace reader_edge
