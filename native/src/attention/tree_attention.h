// The operators `ExactAttention` and `IntegerAttention`: nodes of a draft tree attend to rows of the KV cache in place.
#pragma once

#include <array>

#include "onnxruntime/kernel.h"

namespace reader_edge {

// What an operator's attention is. has_integers: softmax weights and values are; else sums are in float64.
struct AttentionForm {
  bool has_integers, has_merged_heads, has_half_cache, has_sinks;
};

// Of a node. Throws where it is not finite.
float scale_of(const KernelAttributes& attributes);

// The sinks (Hq,) of a call, its input `index`. Throws where they are no numbers, or not as many as heads.
const float* sinks_of(const KernelCall& call, std::size_t index, std::int64_t query_heads);

class TreeAttention {
 public:
  void compute(KernelCall& call) const;

 protected:
  TreeAttention(const KernelAttributes& attributes, const AttentionForm& form);

 private:
  template <class Element>
  void compute_over(KernelCall& call) const;

  float scale_;
  AttentionForm form_;
};

// query (B, Hq, N, D), keys (B, H, S, D), values (B, H, S, D), mask (B, 1, N, M)[, sinks (Hq,)]
template <bool kIsHalf, bool kHasSinks>
constexpr auto attention_inputs() {
  constexpr ort::ElementType kRows = kIsHalf ? ort::kFloat16 : ort::kFloat;
  std::array<ort::ElementType, 4 + kHasSinks> types{ort::kFloat, kRows, kRows, ort::kFloat};
  types.back() = ort::kFloat;
  return types;
}

// -> (B, Hq, N, D)
template <bool kIsHalf, bool kHasSinks>
class ExactAttention : public TreeAttention {
 public:
  static constexpr const char* kName = kHasSinks ? (kIsHalf ? "ExactAttention16Sinks" : "ExactAttentionSinks")
                                                 : (kIsHalf ? "ExactAttention16" : "ExactAttention");
  static constexpr auto kInputs = attention_inputs<kIsHalf, kHasSinks>();
  static constexpr std::array kOutputs{ort::kFloat};

  explicit ExactAttention(const KernelAttributes& attributes)
      : TreeAttention(attributes, {false, false, kIsHalf, kHasSinks}) {}
};

// -> (B, N, Hq * D)
template <bool kIsHalf, bool kHasSinks>
class IntegerAttention : public TreeAttention {
 public:
  static constexpr const char* kName = kHasSinks ? (kIsHalf ? "IntegerAttention16Sinks" : "IntegerAttentionSinks")
                                                 : (kIsHalf ? "IntegerAttention16" : "IntegerAttention");
  static constexpr auto kInputs = attention_inputs<kIsHalf, kHasSinks>();
  static constexpr std::array kOutputs{ort::kFloat};

  explicit IntegerAttention(const KernelAttributes& attributes)
      : TreeAttention(attributes, {true, true, kIsHalf, kHasSinks}) {}
};

}  // namespace reader_edge
