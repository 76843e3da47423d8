// Attention of a tree's nodes over the visible rows of the KV buffers, which it reads where they lie.
#pragma once

#include <array>

#include "kernel.h"
#include "weighted_sums.h"

namespace reader_edge {

class TreeAttention {
 public:
  // query (B, Hq, N, D), keys (B, H, S, D), values (B, H, S, D), mask (B, 1, N, M)
  static constexpr std::array kInputs{ort::kFloat, ort::kFloat, ort::kFloat, ort::kFloat};
  static constexpr std::array kOutputs{ort::kFloat};

  void compute(KernelCall& call) const;

 protected:
  TreeAttention(const KernelAttributes& attributes, WeightedSums weighted_sums, bool has_merged_heads)
      : scale_(attributes.number("scale")), weighted_sums_(weighted_sums), has_merged_heads_(has_merged_heads) {}

 private:
  float scale_;
  WeightedSums weighted_sums_;
  bool has_merged_heads_;
};

// -> (B, Hq, N, D)
class ExactAttention : public TreeAttention {
 public:
  static constexpr const char* kName = "ExactAttention";
  explicit ExactAttention(const KernelAttributes& attributes) : TreeAttention(attributes, float64_sums, false) {}
};

// -> (B, N, Hq * D)
class IntegerAttention : public TreeAttention {
 public:
  static constexpr const char* kName = "IntegerAttention";
  explicit IntegerAttention(const KernelAttributes& attributes) : TreeAttention(attributes, integer_sums, true) {}
};

}  // namespace reader_edge
