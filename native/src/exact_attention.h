// Attention of a tree's nodes over the visible rows of the KV buffers, which it reads where they lie.
#pragma once

#include <array>

#include "kernel.h"

namespace reader_edge {

class ExactAttention {
 public:
  static constexpr const char* kName = "ExactAttention";
  // query (B, Hq, N, D), keys (B, H, S, D), values (B, H, S, D), mask (B, 1, N, M)
  static constexpr std::array kInputs{ort::kFloat, ort::kFloat, ort::kFloat, ort::kFloat};
  static constexpr std::array kOutputs{ort::kFloat};  // (B, Hq, N, D)

  explicit ExactAttention(const KernelAttributes& attributes) : scale_(attributes.number("scale")) {}
  void compute(KernelCall& call) const;

 private:
  float scale_;
};

}  // namespace reader_edge
