// A node's 4-bit matrices (J, K), one, or one for each expert; its rows are rotated, rounded and multiplied by them.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "onnxruntime/kernel.h"
#include "products/blocks/block_product.h"
#include "products/blocks/block_weight.h"
#include "products/expert_product.h"
#include "products/linear_product.h"
#include "products/matrix_place.h"
#include "rounding/hadamard.h"

namespace reader_edge {

class BlockMatrices {
 public:
  BlockMatrices(const KernelAttributes& attributes, const MatrixPlace& place);

  std::size_t num_matrices() const { return weights_.size(); }
  std::size_t num_inputs() const { return rotations_[0].num_inputs(); }
  std::size_t num_outputs() const { return weights_[0].num_outputs(); }
  std::size_t row_bytes() const;
  std::size_t pass_bytes() const { return std::min(row_bytes(), kSliceBlocks * kBlockInputs); }  // many rows go slice by slice
  std::size_t tile_rows() const;
  std::size_t num_panels() const { return weights_[0].num_panels(); }
  std::size_t panel_outputs() const { return kPanelOutputs; }
  std::size_t panel_bytes() const { return weights_[0].panel_bytes(); }

  BlockRows rows(const std::size_t* places, std::size_t count) const;
  void round(const BlockRows& rows, std::size_t index, const float* row, std::size_t matrix) const;
  void multiply(const BlockRows& rows, std::size_t matrix, std::size_t first, std::size_t last, float* output) const;

 private:
  std::vector<HadamardRotation> rotations_;
  std::vector<BlockWeight> weights_;
  std::vector<float> scales_;  // (J,) of each, of a step of the weight and a step of a row whose largest number is one
};

// rows, smoothing (K,), hadamard (b, b), values (J, blocks, 16), block_scales (J, blocks), scales (J,)[, bias (J,), added
// last] -> (..., J)
template <bool kHasBias>
class SpreadBlockLinear : public LinearProduct<BlockMatrices> {
 public:
  static constexpr const char* kName = kHasBias ? "SpreadBlockLinearBias" : "SpreadBlockLinear";
  static constexpr std::array<ort::ElementType, 6 + kHasBias> kInputs{ort::kFloat, ort::kFloat, ort::kFloat,
                                                                      ort::kUInt8, ort::kInt8,  ort::kFloat};
  static constexpr std::array kOutputs{ort::kFloat};

  explicit SpreadBlockLinear(const KernelAttributes& attributes)
      : LinearProduct(attributes, kName, BlockMatrices(attributes, {kName, 1, false}), kHasBias ? 6 : 0) {}
};

// rows (R, K), experts (R,), smoothing (X, K), hadamard (b, b), values (X, J, blocks, 16), block_scales (X, J, blocks),
// scales (X, J) -> (R, J)
class SpreadBlockExperts : public ExpertProduct<BlockMatrices> {
 public:
  static constexpr const char* kName = "SpreadBlockExperts";
  static constexpr std::array kInputs{ort::kFloat, ort::kInt64, ort::kFloat, ort::kFloat,
                                      ort::kUInt8, ort::kInt8,  ort::kFloat};
  static constexpr std::array kOutputs{ort::kFloat};

  explicit SpreadBlockExperts(const KernelAttributes& attributes)
      : ExpertProduct(kName, BlockMatrices(attributes, {kName, 2, true})) {}
};

}  // namespace reader_edge
