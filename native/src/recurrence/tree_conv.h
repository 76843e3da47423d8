// A short causal convolution of each channel over draft trees.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "onnxruntime/kernel.h"

namespace reader_edge {

struct ConvKernels {
  // output (count,): rows taps[0], taps[1], ... times rows of weight (num_taps, num_channels), added in this order.
  void (*convolve)(const float* const* taps, std::size_t num_taps, const float* weight, std::size_t num_channels,
                   std::size_t count, float* output);
};

class TreeConv {
 public:
  static constexpr const char* kName = "TreeConv";
  // input (B, N, C), weight (C, K), constant; parents (B, N), num_kept (B,); state (B, K - 1, C), pending (B, P, C);
  // num_pending (B,)
  static constexpr std::array kInputs{ort::kFloat, ort::kFloat, ort::kInt64, ort::kInt64,
                                      ort::kFloat, ort::kFloat, ort::kInt64};
  // output (B, N, C), present (B, K - 1, C)
  static constexpr std::array kOutputs{ort::kFloat, ort::kFloat};

  explicit TreeConv(const KernelAttributes& attributes);
  void compute(KernelCall& call) const;

 private:
  std::size_t num_channels_, num_taps_;
  std::vector<float> weight_;  // (K, C), that of the node itself first
};

}  // namespace reader_edge
