// rows (..., K) float times a 4-bit matrix (J, K) in blocks of inputs: each row rotated and rounded by its own scale,
// sums of integers, scaled back. All but the rows are constants of the graph, and looked up once.
#pragma once

#include <array>
#include <vector>

#include "onnxruntime/kernel.h"
#include "products/blocks/block_product.h"
#include "products/blocks/block_weight.h"
#include "products/distinct_rows.h"
#include "products/row_tasks.h"
#include "rounding/hadamard.h"

namespace reader_edge {

class BlockLinear {
 public:
  BlockLinear(const KernelAttributes& attributes, bool has_bias);
  void compute(KernelCall& call) const;

 private:
  BlockRows rounded(KernelCall& call, const float* rows, const DistinctRows& distinct, const RowTasks& tasks) const;

  HadamardRotation rotation_;
  BlockWeight weight_;
  std::vector<float> scales_;  // of a step of the weight and a step of a row whose largest number is one
  const float* bias_ = nullptr;
};

// rows, smoothing (K,), hadamard (b, b), values (J, blocks, 16), block_scales (J, blocks), scales (J,)[, bias (J,), added
// last] -> (..., J)
template <bool kHasBias>
class SpreadBlockLinear : public BlockLinear {
 public:
  static constexpr const char* kName = kHasBias ? "SpreadBlockLinearBias" : "SpreadBlockLinear";
  static constexpr std::array<ort::ElementType, 6 + kHasBias> kInputs{ort::kFloat, ort::kFloat, ort::kFloat,
                                                                      ort::kUInt8, ort::kInt8,  ort::kFloat};
  static constexpr std::array kOutputs{ort::kFloat};

  explicit SpreadBlockLinear(const KernelAttributes& attributes) : BlockLinear(attributes, kHasBias) {}
};

}  // namespace reader_edge
