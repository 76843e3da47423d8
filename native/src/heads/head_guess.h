// A step of a trained head: what may come next, and what may come behind the likeliest of that.
//
// One kernel, because a step is short: as nodes of a graph, what surrounds its products takes longer than they do. The
// vocabulary's matrix is in memory once. Its second product waits for the first, so it is read again, but by then from the
// processor's caches.
#pragma once

#include <array>
#include <vector>

#include "onnxruntime/kernel.h"
#include "products/rows/packed_weight.h"

namespace reader_edge {

struct HeadKernels {
  // The largest of at least one logit; those that are no numbers are passed over.
  float (*largest)(const float* logits, std::size_t count);

  // Of exp(logit - best).
  float (*exponential_sum)(const float* logits, float best, std::size_t count);
};

// Rows, each rounded to bytes with a scale of its own, times an int8 matrix, with a scale and a bias for each output.
class HeadLayer {
 public:
  // Constants from input `first` on: weight (I, O), scales (O,) and, where has_bias, bias (O,).
  HeadLayer(const KernelAttributes& attributes, std::size_t first, bool has_bias = true);

  std::size_t num_inputs() const { return weight_.num_inputs(); }
  std::size_t num_outputs() const { return weight_.num_outputs(); }

  // rows (count, I) -> sums (count, O)
  void multiply(const std::vector<float>& rows, std::size_t count, std::vector<float>& sums) const;

 private:
  PackedWeight weight_;
  std::vector<float> scales_, bias_;
};

// hidden_states (B, E), pending (B,), matrices of head_sizes.py, K its ids, and the vocabulary once more, which only the
// definition reads -> probabilities (B, 6), numbers (B, 6), next_probabilities (B, 3, 4), next_numbers (B, 3, 4)
class HeadGuess {
 public:
  static constexpr const char* kName = "HeadGuess";
  static constexpr std::array kInputs{
      ort::kFloat, ort::kInt64, ort::kFloat, ort::kFloat, ort::kFloat,  // hidden_states, pending, mean, gain, embedding
      ort::kInt8,  ort::kFloat, ort::kFloat,                            // first
      ort::kInt8,  ort::kFloat, ort::kFloat,                            // first_out
      ort::kInt8,  ort::kFloat, ort::kFloat,                            // second_known
      ort::kInt8,  ort::kFloat,                                         // second_guessed
      ort::kInt8,  ort::kFloat, ort::kFloat,                            // second_out
      ort::kInt8,  ort::kFloat, ort::kFloat, ort::kInt8};               // vocabulary
  static constexpr std::array kOutputs{ort::kFloat, ort::kInt64, ort::kFloat, ort::kInt64};

  explicit HeadGuess(const KernelAttributes& attributes);
  void compute(KernelCall& call) const;

 private:
  Tensor<const float> mean_, gain_, embedding_;
  HeadLayer first_, first_out_, second_known_, second_guessed_, second_out_, vocabulary_;
  std::vector<float> ones_;
};

}  // namespace reader_edge
