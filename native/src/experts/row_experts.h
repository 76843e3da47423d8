// Matrices of experts in int8: rows rotated and rounded as each asks for it.
#pragma once

#include <array>
#include <vector>

#include "experts/expert_product.h"
#include "onnxruntime/kernel.h"
#include "products/rows/packed_weight.h"
#include "products/rows/row_product.h"
#include "rounding/hadamard.h"

namespace reader_edge {

// num_planes: of bytes that a row is rounded to, one or two.
class RowMatrices {
 public:
  // As QuantizedRows.
  struct Rows {
    std::uint8_t* values;
    std::size_t stride;
    float* scales;
    const std::size_t* places;
  };

  RowMatrices(const KernelAttributes& attributes, std::size_t num_planes);

  std::size_t num_experts() const { return weights_.size(); }
  std::size_t num_inputs() const { return weights_[0].num_inputs(); }
  std::size_t num_outputs() const { return weights_[0].num_outputs(); }
  std::size_t row_bytes() const;
  std::size_t tile_rows() const;
  std::size_t num_panels() const { return weights_[0].num_blocks(); }
  std::size_t panel_bytes() const { return weights_[0].block_bytes(); }

  Rows rows(const std::size_t* places, std::size_t count) const;
  void round(const Rows& rows, std::size_t index, const float* row, std::size_t expert) const;
  void multiply(const Rows& rows, std::size_t first_row, std::size_t count, std::size_t expert, std::size_t first,
                std::size_t last, float* output) const;

 private:
  std::size_t num_planes_;
  std::vector<HadamardRotation> rotations_;
  std::vector<PackedWeight> weights_;
  std::vector<float> scales_;  // (X, J)
};

template <std::size_t kNumPlanes>
struct RowMatricesOf : RowMatrices {
  static constexpr const char* kName = kNumPlanes == 1 ? "SpreadRowExperts" : "SpreadRowExperts16";

  explicit RowMatricesOf(const KernelAttributes& attributes) : RowMatrices(attributes, kNumPlanes) {}
};

// rows (R, K), experts (R,), smoothing (X, K), hadamard (b, b), values (X, J, K), scales (X, J) -> (R, J)
template <std::size_t kNumPlanes>
class SpreadRowExperts : public ExpertProduct<RowMatricesOf<kNumPlanes>> {
 public:
  static constexpr const char* kName = RowMatricesOf<kNumPlanes>::kName;
  static constexpr std::array kInputs{ort::kFloat, ort::kInt64, ort::kFloat, ort::kFloat, ort::kInt8, ort::kFloat};
  static constexpr std::array kOutputs{ort::kFloat};

  using ExpertProduct<RowMatricesOf<kNumPlanes>>::ExpertProduct;
};

}  // namespace reader_edge
