// Attention of a tree's nodes over the visible rows of the KV buffers, which it reads where they lie.
#pragma once

#include <array>

#include "kernel.h"

namespace reader_edge {

// What an operator's attention is. has_integers: softmax weights and values are; else sums are in float64.
struct AttentionForm {
  bool has_integers, has_merged_heads, has_half_cache;
};

// Of a node. Throws where it is not finite.
float scale_of(const KernelAttributes& attributes);

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

// query (B, Hq, N, D), keys (B, H, S, D), values (B, H, S, D), mask (B, 1, N, M)
template <bool kIsHalf>
inline constexpr std::array kAttentionInputs{ort::kFloat, kIsHalf ? ort::kFloat16 : ort::kFloat,
                                             kIsHalf ? ort::kFloat16 : ort::kFloat, ort::kFloat};

// -> (B, Hq, N, D)
template <bool kIsHalf>
class ExactAttention : public TreeAttention {
 public:
  static constexpr const char* kName = kIsHalf ? "ExactAttention16" : "ExactAttention";
  static constexpr auto kInputs = kAttentionInputs<kIsHalf>;
  static constexpr std::array kOutputs{ort::kFloat};

  explicit ExactAttention(const KernelAttributes& attributes)
      : TreeAttention(attributes, {false, false, kIsHalf}) {}
};

// -> (B, N, Hq * D)
template <bool kIsHalf>
class IntegerAttention : public TreeAttention {
 public:
  static constexpr const char* kName = kIsHalf ? "IntegerAttention16" : "IntegerAttention";
  static constexpr auto kInputs = kAttentionInputs<kIsHalf>;
  static constexpr std::array kOutputs{ort::kFloat};

  explicit IntegerAttention(const KernelAttributes& attributes)
      : TreeAttention(attributes, {true, true, kIsHalf}) {}
};

}  // namespace reader_edge
