// The operator `SwiGLU`: gate and up (..., 2 J), side by side, to gate / (1 + exp(-gate)) * up (..., J).
#pragma once

#include <array>

#include "onnxruntime/kernel.h"

namespace reader_edge {

struct SwiGluKernels {
  void (*gated)(const float* gate, const float* up, std::size_t count, float* output);
};

class SwiGlu {
 public:
  static constexpr const char* kName = "SwiGLU";
  static constexpr std::array kInputs{ort::kFloat};
  static constexpr std::array kOutputs{ort::kFloat};

  explicit SwiGlu(const KernelAttributes&) {}
  void compute(KernelCall& call) const;
};

}  // namespace reader_edge
