// The operator `LowRankRows`: to a product's outputs (..., J) it adds, for rows of sequences that have an adapter, what
// its factors make of the same inputs (..., K). Rows of others are left alone, in the same memory where that is free.
//
// An adapter's row of the table has its factors of every product, of the rank that all adapters are padded to: of each
// part, `down` in runs of kDownRun inputs, rank by rank, and `up` in panels of kUpPanel outputs, likewise. Both
// are padded with noughts to whole steps. The sums have one order: of inputs, kDownStep running ones joined in a tree; of
// ranks, from the first on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "onnxruntime/kernel.h"

namespace reader_edge {

constexpr std::size_t kDownStep = 32, kDownRun = 1024, kUpPanel = 64;

template <class Factor>
struct FactorKernels {
  // Adds to kDownStep sums of each of `count` rows, at most tile_rows and `stride` apart, its inputs times a run of
  // `down`. rows: where each begins; offset: of the run. width: of the inputs.
  void (*add_run)(const float* const* rows, std::size_t offset, std::size_t count, const Factor* down,
                  std::size_t width, float* sums, std::size_t stride);
  // Adds `width` outputs of a panel of `up` to as many rows. values: of each, its products with `down`, `stride` apart.
  void (*add_panel)(const float* values, std::size_t stride, std::size_t count, const Factor* up, std::size_t num_ranks,
                    float* const* outputs, std::size_t offset, std::size_t width);
};

struct LowRankKernels {
  std::size_t tile_rows;  // of the same adapter, which share each read of its factors
  float (*joined)(const float* sums);
  FactorKernels<float> floats;
  FactorKernels<std::uint16_t> halves;
};

template <class Factor>
class LowRankRows {
 public:
  static constexpr bool kIsHalf = std::is_same_v<Factor, std::uint16_t>;
  static constexpr const char* kName = kIsHalf ? "LowRankRows16" : "LowRankRows";
  // inputs (..., K), outputs (..., J) of the product, adapter_ids (B,), table (A, S), outputs of each part (P,)
  static constexpr std::array kInputs{ort::kFloat, ort::kFloat, ort::kInt64, kIsHalf ? ort::kFloat16 : ort::kFloat,
                                      ort::kInt64};
  static constexpr std::array kOutputs{ort::kFloat};
  static constexpr std::array kInPlace{1, 0};  // the outputs

  // Attributes: `start`, where the product begins in a row of the table, and `size`, of the row, both for each rank.
  explicit LowRankRows(const KernelAttributes& attributes);
  void compute(KernelCall& call) const;

 private:
  std::size_t start_, size_;
  std::vector<std::size_t> parts_;  // outputs of each
};

}  // namespace reader_edge
