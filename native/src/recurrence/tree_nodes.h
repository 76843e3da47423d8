// The draft trees of a pass through a recurrent layer: what is replayed, what is committed, what hangs on what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "onnxruntime/kernel.h"

namespace reader_edge {

// The inputs that trees come in: parents (B, N), num_kept (B,), num_pending (B,).
struct TreeInputs {
  Tensor<const std::int64_t> parents, num_kept, num_pending;
};

// One tree. Nodes [0, num_kept) are a chain, whose states are committed. Others hang on the last of those or on a later
// node: before[i] is that node, or -1, where there are none.
struct TreeNodes {
  std::size_t num_kept, num_pending;
  std::vector<std::int64_t> before;

  std::size_t count() const { return before.size(); }
};

// For each sequence. Throws where a parent does not come before its node, or counts reach beyond nodes and pending rows.
std::vector<TreeNodes> trees_of(const char* op, const TreeInputs& inputs, std::int64_t batch, std::int64_t num_nodes,
                                std::int64_t num_slots);

}  // namespace reader_edge
