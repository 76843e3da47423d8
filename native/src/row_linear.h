// rows (..., K) float times an int8 matrix (J, K): each row quantised by its own scale, integer sums, scaled back.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernel.h"

namespace reader_edge {

class RowLinear {
 public:
  static constexpr const char* kName = "RowLinear";
  static constexpr std::array kInputs{ort::kFloat, ort::kInt8, ort::kFloat};  // rows, weight (J, K), scales (J,)
  static constexpr std::array kOutputs{ort::kFloat};                          // (..., J)

  explicit RowLinear(const KernelAttributes& attributes);
  void compute(KernelCall& call) const;

 private:
  std::vector<std::int32_t> row_sums_;  // of the weight, (J,)
};

}  // namespace reader_edge
