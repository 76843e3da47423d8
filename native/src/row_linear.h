// rows (..., K) float times an int8 matrix (J, K): each row quantised by its own scale, integer sums, scaled back.
// All but the rows are constants of the graph, and looked up once: asking ONNX Runtime costs more than a small product.
#pragma once

#include <array>

#include "kernel.h"
#include "packed_weight.h"

namespace reader_edge {

class RowLinear {
 public:
  static constexpr const char* kName = "RowLinear";
  static constexpr std::array kInputs{ort::kFloat, ort::kInt8, ort::kFloat};  // rows, weight (J, K), scales (J,)
  static constexpr std::array kOutputs{ort::kFloat};                          // (..., J)

  explicit RowLinear(const KernelAttributes& attributes);
  void compute(KernelCall& call) const { multiply(call, nullptr); }

 protected:
  std::size_t num_outputs() const { return weight_.num_outputs(); }
  void multiply(KernelCall& call, const float* bias) const;  // bias (J,), or none

 private:
  PackedWeight weight_;
  const float* scales_;
};

// The same, and a bias (J,) added last.
class RowLinearBias : public RowLinear {
 public:
  static constexpr const char* kName = "RowLinearBias";
  static constexpr std::array kInputs{ort::kFloat, ort::kInt8, ort::kFloat, ort::kFloat};

  explicit RowLinearBias(const KernelAttributes& attributes);
  void compute(KernelCall& call) const { multiply(call, bias_); }

 private:
  const float* bias_;
};

}  // namespace reader_edge
