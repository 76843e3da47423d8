// Matrices of experts in the blocks of GGUF files.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "experts/expert_product.h"
#include "onnxruntime/kernel.h"
#include "products/gguf/gguf_constants.h"
#include "products/gguf/gguf_product.h"

namespace reader_edge {

class GgufMatrices {
 public:
  using Rows = GgufRows;

  GgufMatrices(const KernelAttributes& attributes, const GgufType& type, const char* op)
      : weights_(gguf_weights(attributes, type, {op, 2, true})) {}

  std::size_t num_experts() const { return weights_.size(); }
  std::size_t num_inputs() const { return weights_[0].num_inputs(); }
  std::size_t num_outputs() const { return weights_[0].num_outputs(); }
  std::size_t row_bytes() const { return num_inputs(); }
  std::size_t tile_rows() const;
  std::size_t num_panels() const { return weights_[0].num_panels(); }
  std::size_t panel_bytes() const { return weights_[0].panel_bytes(); }

  Rows rows(const std::size_t* places, std::size_t count) const;
  void round(const Rows& rows, std::size_t index, const float* row, std::size_t expert) const;
  void multiply(const Rows& rows, std::size_t first_row, std::size_t count, std::size_t expert, std::size_t first,
                std::size_t last, float* output) const;

 private:
  std::vector<GgufWeight> weights_;
};

// Q4_0Linear's is Q4_0Experts.
template <const GgufType& kType>
constexpr auto gguf_experts_name() {
  constexpr std::string_view kLinear = "Linear", kExperts = "Experts", kBefore = kType.name;
  std::array<char, kBefore.size() - kLinear.size() + kExperts.size() + 1> name{};
  std::size_t i = 0;
  for (; i < kBefore.size() - kLinear.size(); ++i) name[i] = kBefore[i];
  for (const char letter : kExperts) name[i++] = letter;
  return name;
}

template <const GgufType& kType>
class GgufMatricesOf : public GgufMatrices {
  static constexpr auto kLetters = gguf_experts_name<kType>();

 public:
  static constexpr const char* kName = kLetters.data();

  explicit GgufMatricesOf(const KernelAttributes& attributes) : GgufMatrices(attributes, kType, kName) {}
};

// rows (R, K), experts (R,), and the matrices' constants, stacked -> (R, J)
template <const GgufType& kType>
class GgufExperts : public ExpertProduct<GgufMatricesOf<kType>> {
  static constexpr auto input_types() {
    auto types = gguf_input_types<kType, 2>();
    types[1] = ort::kInt64;
    return types;
  }

 public:
  static constexpr const char* kName = GgufMatricesOf<kType>::kName;
  static constexpr std::array kInputs = input_types();
  static constexpr std::array kOutputs{ort::kFloat};

  using ExpertProduct<GgufMatricesOf<kType>>::ExpertProduct;
};

}  // namespace reader_edge
