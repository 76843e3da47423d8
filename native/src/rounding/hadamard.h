// Hadamard rotation, which spreads large inputs of a row over their neighbours: blocks of inputs, each times its smoothing
// scale, times a Walsh-Hadamard matrix.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "onnxruntime/kernel.h"
#include "shared_constants.h"

namespace reader_edge {

struct HadamardKernels {
  // row times its smoothing scales, blocks of it times the matrix, to `rotated`; all (K,), with room for a multiple of 16
  // there. Returns the largest magnitude.
  float (*apply)(const float* row, const float* smoothing, std::size_t num_inputs, std::size_t block, float* rotated);
};

// Memory is the graph's: smoothing (K,) float, and a block of inputs, a power of two up to kMaxBlock that divides K.
class HadamardRotation {
 public:
  // smoothing: inputs' own factors, input 1 of the node; hadamard: ones and minus ones (b, b), input 2.
  explicit HadamardRotation(const KernelAttributes& attributes);
  // smoothing (..., K), of which the first is taken, and the matrix. Throws where it is none, or does not fit.
  HadamardRotation(const Tensor<const float>& smoothing, const Tensor<const float>& hadamard);

  // The same with another smoothing (K,).
  HadamardRotation with(const float* smoothing) const {
    HadamardRotation other = *this;
    other.smoothing_ = smoothing;
    return other;
  }

  std::size_t num_inputs() const { return num_inputs_; }
  std::size_t block() const { return block_; }

  // A row (K,) to `rotated`, which has room for a multiple of 16; returns its largest magnitude then.
  float apply(const float* row, float* rotated) const;

 private:
  const float* smoothing_;
  std::size_t num_inputs_, block_;
};

// Of a node's matrices: smoothing (K,), or stacked (X, K), is input `first`; the matrix, which they share, the next one.
std::vector<HadamardRotation> rotations(const KernelAttributes& attributes, std::size_t first, bool is_stacked);

// rows (..., K) -> (..., K), where another operator multiplies.
class SpreadRows {
 public:
  static constexpr const char* kName = "SpreadRows";
  static constexpr std::array kInputs{ort::kFloat, ort::kFloat, ort::kFloat};  // rows, smoothing, hadamard
  static constexpr std::array kOutputs{ort::kFloat};

  explicit SpreadRows(const KernelAttributes& attributes) : rotation_(attributes) {}
  void compute(KernelCall& call) const;

 private:
  HadamardRotation rotation_;
};

}  // namespace reader_edge
