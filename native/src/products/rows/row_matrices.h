// A node's int8 matrices (J, K), one, or one for each expert; its rows are rotated, rounded and multiplied by them.
#pragma once

#include <array>
#include <vector>

#include "onnxruntime/kernel.h"
#include "products/expert_product.h"
#include "products/linear_product.h"
#include "products/matrix_place.h"
#include "products/rows/packed_weight.h"
#include "products/rows/row_product.h"
#include "rounding/hadamard.h"

namespace reader_edge {

class RowMatrices {
 public:
  // num_planes: of bytes that a row is rounded to, one or two.
  RowMatrices(const KernelAttributes& attributes, const MatrixPlace& place, std::size_t num_planes);

  std::size_t num_matrices() const { return weights_.size(); }
  std::size_t num_inputs() const { return weights_[0].num_inputs(); }
  std::size_t num_outputs() const { return weights_[0].num_outputs(); }
  std::size_t row_bytes() const;
  std::size_t pass_bytes() const { return row_bytes(); }
  std::size_t tile_rows() const;
  std::size_t num_panels() const { return weights_[0].num_blocks(); }
  std::size_t panel_outputs() const { return weights_[0].block_outputs(); }
  std::size_t panel_bytes() const { return weights_[0].block_bytes(); }

  QuantizedRows rows(const std::size_t* places, std::size_t count) const;
  void round(const QuantizedRows& rows, std::size_t index, const float* row, std::size_t matrix) const;
  void multiply(const QuantizedRows& rows, std::size_t matrix, std::size_t first, std::size_t last, float* output) const;

 private:
  std::size_t num_planes_;
  std::vector<HadamardRotation> rotations_;
  std::vector<PackedWeight> weights_;
  std::vector<float> scales_;  // (J,) of each, of a step of the weight and a step of a row whose largest number is one
};

// rows, smoothing (K,), hadamard (b, b), weight (J, K), scales (J,)[, bias (J,), added last] -> (..., J)
template <std::size_t kNumPlanes, bool kHasBias>
class SpreadRowLinear : public LinearProduct<RowMatrices> {
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

  explicit SpreadRowLinear(const KernelAttributes& attributes)
      : LinearProduct(attributes, kName, RowMatrices(attributes, {kName, 1, false}, kNumPlanes), kHasBias ? 5 : 0) {}
};

// rows (R, K), experts (R,), smoothing (X, K), hadamard (b, b), values (X, J, K), scales (X, J) -> (R, J)
template <std::size_t kNumPlanes>
class SpreadRowExperts : public ExpertProduct<RowMatrices> {
 public:
  static constexpr const char* kName = kNumPlanes == 1 ? "SpreadRowExperts" : "SpreadRowExperts16";
  static constexpr std::array kInputs{ort::kFloat, ort::kInt64, ort::kFloat, ort::kFloat, ort::kInt8, ort::kFloat};
  static constexpr std::array kOutputs{ort::kFloat};

  explicit SpreadRowExperts(const KernelAttributes& attributes)
      : ExpertProduct(kName, RowMatrices(attributes, {kName, 2, true}, kNumPlanes)) {}
};

}  // namespace reader_edge
