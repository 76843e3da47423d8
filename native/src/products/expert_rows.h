// Rows of a product, each by a matrix of its own: those of an expert side by side, so that they share each read of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "onnxruntime/kernel.h"

namespace reader_edge {

struct ExpertRows {
  struct Group {
    std::size_t expert, first, count;
  };

  std::vector<std::size_t> places;   // (R,): where each stands among all rows; an expert's in their own order
  std::vector<std::size_t> experts;  // (R,): of the rows at these places
  std::vector<Group> groups;         // of `places`, the experts that have rows
};

// experts (R,). Throws where one is not among num_experts, or sizes do not fit.
ExpertRows expert_rows(const char* op, const Tensor<const std::int64_t>& experts, std::size_t num_rows,
                       std::size_t num_experts);

}  // namespace reader_edge
