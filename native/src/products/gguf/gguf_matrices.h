// A node's matrices (J, K) in the blocks of GGUF files, one, or one for each expert; its rows are rounded in blocks,
// multiplied by them in integers, scaled back and combined block by block.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "onnxruntime/kernel.h"
#include "products/expert_product.h"
#include "products/gguf/gguf_constants.h"
#include "products/gguf/gguf_product.h"
#include "products/linear_product.h"

namespace reader_edge {

class GgufMatrices {
 public:
  GgufMatrices(const KernelAttributes& attributes, const GgufType& type, const MatrixPlace& place)
      : weights_(gguf_weights(attributes, type, place)) {}

  std::size_t num_matrices() const { return weights_.size(); }
  std::size_t num_inputs() const { return weights_[0].num_inputs(); }
  std::size_t num_outputs() const { return weights_[0].num_outputs(); }
  std::size_t pass_bytes() const;
  std::size_t tile_rows() const;
  std::size_t num_panels() const;  // each of as many of a weight as tiles read side by side
  std::size_t panel_outputs() const;
  std::size_t panel_bytes() const;

  GgufRows rows(const std::size_t* places, std::size_t count) const;
  void round(const GgufRows& rows, std::size_t index, const float* row, std::size_t matrix) const;
  void multiply(const GgufRows& rows, std::size_t matrix, std::size_t first, std::size_t last, float* output) const;

 private:
  std::vector<GgufWeight> weights_;
};

// rows, qs (J, blocks, bytes), [qh (J, blocks, bytes),] scales (J, blocks or fewer), [scale_codes (J, blocks),]
// [minima, likewise, [minimum_codes]] -> (..., J)
template <const GgufType& kType>
class GgufLinear : public LinearProduct<GgufMatrices> {
 public:
  static constexpr const char* kName = kType.name;
  static constexpr std::array kInputs = gguf_input_types<kType, 1>();
  static constexpr std::array kOutputs{ort::kFloat};

  explicit GgufLinear(const KernelAttributes& attributes)
      : LinearProduct(attributes, kName, GgufMatrices(attributes, kType, {kName, 1, false}), 0) {}
};

// rows (R, K), experts (R,), and the matrices' constants, stacked -> (R, J)
template <const GgufType& kType>
class GgufExperts : public ExpertProduct<GgufMatrices> {
  static constexpr auto letters() {  // Q4_0Linear's is Q4_0Experts
    constexpr std::string_view kLinear = "Linear", kExperts = "Experts", kBefore = kType.name;
    std::array<char, kBefore.size() - kLinear.size() + kExperts.size() + 1> name{};
    std::size_t i = 0;
    for (; i < kBefore.size() - kLinear.size(); ++i) name[i] = kBefore[i];
    for (const char letter : kExperts) name[i++] = letter;
    return name;
  }

  static constexpr auto input_types() {
    auto types = gguf_input_types<kType, 2>();
    types[1] = ort::kInt64;
    return types;
  }

  static constexpr auto kLetters = letters();

 public:
  static constexpr const char* kName = kLetters.data();
  static constexpr std::array kInputs = input_types();
  static constexpr std::array kOutputs{ort::kFloat};

  explicit GgufExperts(const KernelAttributes& attributes)
      : ExpertProduct(kName, GgufMatrices(attributes, kType, {kName, 2, true})) {}
};

}  // namespace reader_edge
