// The operator `RotaryHeads`: the columns of a fused QKV product as heads; query and key with their rotary embedding.
#pragma once

#include <array>

#include "onnxruntime/kernel.h"

namespace reader_edge {

struct RotaryKernels {
  // One head of a node, its halves (half,) rotated: each by the angle whose cosine and sine are at its place.
  void (*rotate)(const float* head, const float* cosines, const float* sines, std::size_t half, float* output);
};

class RotaryHeads {
 public:
  static constexpr const char* kName = "RotaryHeads";
  // qkv (B, N, (Hq + 2 Hkv) D), cosines (B, N, D / 2), sines (B, N, D / 2)
  static constexpr std::array kInputs{ort::kFloat, ort::kFloat, ort::kFloat};
  // query (B, Hq, N, D), key (B, Hkv, N, D), value (B, Hkv, N, D)
  static constexpr std::array kOutputs{ort::kFloat, ort::kFloat, ort::kFloat};

  explicit RotaryHeads(const KernelAttributes& attributes);
  void compute(KernelCall& call) const;

 private:
  std::int64_t num_heads_, num_kv_heads_;
};

}  // namespace reader_edge
