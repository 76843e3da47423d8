// Large inputs of a row spread over their neighbours: blocks of inputs, stretched, times a Walsh-Hadamard matrix.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "kernel.h"
#include "shared_constants.h"

namespace reader_edge {

struct SpreadKernels {
  // row times stretch, blocks of it times the matrix, to `spread`; all (K,), with room for a multiple of 16 there. Returns
  // the largest magnitude.
  float (*apply)(const float* row, const float* stretch, std::size_t num_inputs, std::size_t block, float* spread);
};

// Memory is the graph's: stretch (K,) float, and a block of inputs, a power of two up to kMaxBlock that divides K.
class Spread {
 public:
  // stretch: inputs' own factors, input 1 of the node; hadamard: ones and minus ones (b, b), input 2.
  explicit Spread(const KernelAttributes& attributes);
  // stretch (..., K), of which the first is taken, and the matrix. Throws where it is none, or does not fit.
  Spread(const Tensor<const float>& stretch, const Tensor<const float>& hadamard);

  // The same with another stretch (K,).
  Spread with(const float* stretch) const {
    Spread other = *this;
    other.stretch_ = stretch;
    return other;
  }

  std::size_t num_inputs() const { return num_inputs_; }
  std::size_t block() const { return block_; }

  // A row (K,) to `spread`, which has room for a multiple of 16; returns its largest magnitude then.
  float apply(const float* row, float* spread) const;

 private:
  const float* stretch_;
  std::size_t num_inputs_, block_;
};

// Of experts: stretch (X, K), input 2 of the node, and the matrix, input 3, which they share.
std::vector<Spread> spreads_of_experts(const KernelAttributes& attributes);

// rows (..., K) -> (..., K), where another operator multiplies.
class SpreadRows {
 public:
  static constexpr const char* kName = "SpreadRows";
  static constexpr std::array kInputs{ort::kFloat, ort::kFloat, ort::kFloat};  // rows, stretch, hadamard
  static constexpr std::array kOutputs{ort::kFloat};

  explicit SpreadRows(const KernelAttributes& attributes) : spread_(attributes) {}
  void compute(KernelCall& call) const;

 private:
  Spread spread_;
};

}  // namespace reader_edge
