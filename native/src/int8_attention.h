// Attention of a tree's nodes over the visible rows of a KV cache of eight bits: every sum is one of integers.
#pragma once

#include <array>

#include "kernel.h"
#include "spread.h"

namespace reader_edge {

class Int8CacheAttention {
 public:
  static constexpr const char* kName = "Int8CacheAttention";
  // query (B, Hq, N, D), stretch (D,), hadamard (b, b), keys and values (B, H, S, D + 2), mask (B, 1, N, M)
  static constexpr std::array kInputs{ort::kFloat, ort::kFloat, ort::kFloat, ort::kInt8, ort::kInt8, ort::kFloat};
  static constexpr std::array kOutputs{ort::kFloat};  // (B, N, Hq * D)

  explicit Int8CacheAttention(const KernelAttributes& attributes);
  void compute(KernelCall& call) const;

 private:
  Spread spread_;
  float unit_;  // of a score
};

}  // namespace reader_edge
