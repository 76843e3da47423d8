// rows (..., K) float times an int8 matrix (J, K): each row quantised by its own scale, integer sums, scaled back.
// All but the rows are constants of the graph, and looked up once: asking ONNX Runtime costs more than a small product.
#pragma once

#include <array>
#include <vector>

#include "onnxruntime/kernel.h"
#include "products/distinct_rows.h"
#include "products/row_tasks.h"
#include "products/rows/packed_weight.h"
#include "products/rows/row_product.h"
#include "rounding/hadamard.h"

namespace reader_edge {

class RowLinearBase {
 public:
  // num_planes: of bytes that a rotated row is rounded to, one or two.
  RowLinearBase(const KernelAttributes& attributes, std::size_t num_planes, bool has_bias);
  void compute(KernelCall& call) const;

 private:
  QuantizedRows quantized(KernelCall& call, const float* rows, const DistinctRows& distinct, const RowTasks& tasks) const;

  std::size_t num_planes_;
  PackedWeight weight_;
  HadamardRotation rotation_;
  std::vector<float> scales_;
  const float* bias_ = nullptr;
};

// rows, smoothing (K,), hadamard (b, b), weight (J, K), scales (J,)[, bias (J,), added last] -> (..., J)
template <std::size_t kNumPlanes, bool kHasBias>
class RowLinear : public RowLinearBase {
  static constexpr std::array<const char*, 4> kNames{"SpreadRowLinear", "SpreadRowLinearBias", "SpreadRowLinear16",
                                                     "SpreadRowLinear16Bias"};

  static constexpr auto input_types() {
    std::array<ort::ElementType, 5 + kHasBias> types{};
    for (auto& type : types) type = ort::kFloat;
    types[3] = ort::kInt8;
    return types;
  }

 public:
  static constexpr const char* kName = kNames[2 * (kNumPlanes - 1) + kHasBias];
  static constexpr std::array kInputs = input_types();
  static constexpr std::array kOutputs{ort::kFloat};

  explicit RowLinear(const KernelAttributes& attributes) : RowLinearBase(attributes, kNumPlanes, kHasBias) {}
};

}  // namespace reader_edge
