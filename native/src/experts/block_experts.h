// Matrices of experts in four bits: rows rotated and rounded as each asks for it.
#pragma once

#include <array>
#include <vector>

#include "experts/expert_product.h"
#include "onnxruntime/kernel.h"
#include "products/blocks/block_product.h"
#include "products/blocks/block_weight.h"
#include "rounding/hadamard.h"

namespace reader_edge {

class BlockMatrices {
 public:
  static constexpr const char* kName = "SpreadBlockExperts";
  // As BlockRows.
  struct Rows {
    std::int8_t* values;
    std::int32_t *starts, *totals;
    float* scales;
    const std::size_t* places;
  };

  explicit BlockMatrices(const KernelAttributes& attributes);

  std::size_t num_experts() const { return weights_.size(); }
  std::size_t num_inputs() const { return rotations_[0].num_inputs(); }
  std::size_t num_outputs() const { return weights_[0].num_outputs(); }
  std::size_t row_bytes() const;
  std::size_t tile_rows() const;
  std::size_t num_panels() const { return weights_[0].num_panels(); }
  std::size_t panel_bytes() const { return weights_[0].panel_bytes(); }

  Rows rows(const std::size_t* places, std::size_t count) const;
  void round(const Rows& rows, std::size_t index, const float* row, std::size_t expert) const;
  void multiply(const Rows& rows, std::size_t first_row, std::size_t count, std::size_t expert, std::size_t first,
                std::size_t last, float* output) const;

 private:
  std::vector<HadamardRotation> rotations_;
  std::vector<BlockWeight> weights_;
  std::vector<float> scales_;  // (X, J)
};

// rows (R, K), experts (R,), smoothing (X, K), hadamard (b, b), values (X, J, blocks, 16), block_scales (X, J, blocks),
// scales (X, J) -> (R, J)
class SpreadBlockExperts : public ExpertProduct<BlockMatrices> {
 public:
  static constexpr const char* kName = BlockMatrices::kName;
  static constexpr std::array kInputs{ort::kFloat, ort::kInt64, ort::kFloat, ort::kFloat,
                                      ort::kUInt8, ort::kInt8,  ort::kFloat};
  static constexpr std::array kOutputs{ort::kFloat};

  using ExpertProduct::ExpertProduct;
};

}  // namespace reader_edge
