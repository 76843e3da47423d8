// The operator `HalfRows`: keys and values rounded to fp16 as they are written to the KV cache.
#pragma once

#include <array>

#include "onnxruntime/kernel.h"

namespace reader_edge {

struct HalfRowKernels {
  void (*round)(const float* numbers, std::size_t count, std::uint16_t* halves);
};

// key, value (B, H, N, D) -> both rounded to the nearest half, what is beyond the largest to that
class HalfRows {
 public:
  static constexpr const char* kName = "HalfRows";
  static constexpr std::array kInputs{ort::kFloat, ort::kFloat};
  static constexpr std::array kOutputs{ort::kFloat16, ort::kFloat16};

  explicit HalfRows(const KernelAttributes&) {}
  void compute(KernelCall& call) const;
};

}  // namespace reader_edge
