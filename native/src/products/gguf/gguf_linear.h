// rows (..., K) float times a matrix (J, K) in the blocks of a GGUF file: each row rounded in blocks, sums of integers,
// scaled back and combined block by block. All but the rows are constants of the graph, and looked up once.
#pragma once

#include <array>

#include "onnxruntime/kernel.h"
#include "products/distinct_rows.h"
#include "products/gguf/gguf_constants.h"
#include "products/gguf/gguf_product.h"
#include "products/gguf/gguf_weight.h"
#include "products/row_tasks.h"

namespace reader_edge {

class GgufLinearBase {
 public:
  GgufLinearBase(const KernelAttributes& attributes, const GgufType& type);
  void compute(KernelCall& call) const;

 private:
  GgufRows rounded(KernelCall& call, const float* rows, const DistinctRows& distinct, const RowTasks& tasks) const;

  GgufWeight weight_;
};

// rows, qs (J, blocks, bytes), [qh (J, blocks, bytes),] scales (J, blocks or fewer), [scale_codes (J, blocks),]
// [minima, likewise, [minimum_codes]] -> (..., J)
template <const GgufType& kType>
class GgufLinear : public GgufLinearBase {
 public:
  static constexpr const char* kName = kType.name;
  static constexpr std::array kInputs = gguf_input_types<kType, 1>();
  static constexpr std::array kOutputs{ort::kFloat};

  explicit GgufLinear(const KernelAttributes& attributes) : GgufLinearBase(attributes, kType) {}
};

}  // namespace reader_edge
