// The scale that turns an integer sum of softmax weights times int8 values into an fp32 attention output.
#pragma once

#include "shared_constants.h"

namespace reader_edge::READER_EDGE_LANES {

constexpr float kTotalSteps = 4194304.0f;  // of a weight of one in the divisor

// Of a row with this largest weight, and this total of all.
inline double unit_of(float weight_top, double total) {
  constexpr double kUnit = 1.0 / (double{kByteWeightSteps} * kRowSteps), kTotalUnit = 1.0 / 4194304.0;
  return static_cast<double>(weight_top) / (total * kTotalUnit) * kUnit;
}

}  // namespace reader_edge::READER_EDGE_LANES
