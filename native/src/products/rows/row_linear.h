// rows (..., K) float times an int8 matrix (J, K): each row quantised by its own scale, integer sums, scaled back.
// All but the rows are constants of the graph, and looked up once: asking ONNX Runtime costs more than a small product.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "onnxruntime/kernel.h"
#include "products/distinct_rows.h"
#include "products/row_tasks.h"
#include "products/rows/packed_weight.h"
#include "products/rows/row_product.h"
#include "rounding/hadamard.h"

namespace reader_edge {

// is_rotated: whether a row's inputs are rotated first. num_planes: of bytes that it is rounded to then, one or two.
struct RowForm {
  bool is_rotated, has_bias;
  std::size_t num_planes;

  constexpr std::size_t weight_input() const { return is_rotated ? 3 : 1; }
  constexpr std::size_t num_inputs() const { return weight_input() + 2 + has_bias; }
};

class RowLinearBase {
 public:
  RowLinearBase(const KernelAttributes& attributes, const RowForm& form);
  void compute(KernelCall& call) const;

 private:
  QuantizedRows quantized(KernelCall& call, const float* rows, const DistinctRows& distinct, const RowTasks& tasks) const;

  std::size_t num_planes_;
  std::optional<HadamardRotation> rotation_;
  PackedWeight weight_;
  std::vector<float> scales_;
  const float* bias_ = nullptr;
};

// rows, [smoothing (K,), hadamard (b, b),] weight (J, K), scales (J,)[, bias (J,), added last] -> (..., J)
template <bool kIsRotated, std::size_t kNumPlanes, bool kHasBias>
class RowLinear : public RowLinearBase {
  static constexpr RowForm kForm{kIsRotated, kHasBias, kNumPlanes};
  static constexpr std::array<const char*, 6> kNames{"RowLinear",           "RowLinearBias",     "SpreadRowLinear",
                                                     "SpreadRowLinearBias", "SpreadRowLinear16", "SpreadRowLinear16Bias"};

  static constexpr auto input_types() {
    std::array<ort::ElementType, kForm.num_inputs()> types{};
    for (auto& type : types) type = ort::kFloat;
    types[kForm.weight_input()] = ort::kInt8;
    return types;
  }

 public:
  static constexpr const char* kName = kNames[2 * (kIsRotated + kNumPlanes - 1) + kHasBias];
  static constexpr std::array kInputs = input_types();
  static constexpr std::array kOutputs{ort::kFloat};

  explicit RowLinear(const KernelAttributes& attributes) : RowLinearBase(attributes, kForm) {}
};

}  // namespace reader_edge
