#include "recurrence/tree_nodes.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace reader_edge {
namespace {

[[noreturn]] void refuse(const char* op, const char* what) { throw std::invalid_argument(std::string(op) + ": " + what); }

}  // namespace

std::vector<TreeNodes> trees_of(const char* op, const TreeInputs& inputs, std::int64_t batch, std::int64_t num_nodes,
                                std::int64_t num_slots) {
  const std::vector<std::int64_t> counts{batch}, nodes{batch, num_nodes};
  if (inputs.parents.sizes != nodes || inputs.num_kept.sizes != counts || inputs.num_pending.sizes != counts) {
    refuse(op, "sizes of parents, num_kept and num_pending do not fit");
  }
  std::vector<TreeNodes> trees;
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t kept = inputs.num_kept.data[b], pending = inputs.num_pending.data[b];
    if (kept < 0 || kept > num_nodes) refuse(op, "more nodes are kept than there are");
    if (pending < 0 || pending > num_slots) refuse(op, "more rows are pending than there are");
    TreeNodes tree{static_cast<std::size_t>(kept), static_cast<std::size_t>(pending), {}};
    for (std::int64_t i = 0; i < num_nodes; ++i) {
      const std::int64_t parent = inputs.parents.data[b * num_nodes + i];
      if (parent < -1 || parent >= i) refuse(op, "a parent does not come before its node");
      if (i < kept && parent != i - 1) refuse(op, "nodes that are kept are no chain");
      tree.before.push_back(std::max(parent, std::min(i, kept) - 1));
    }
    trees.push_back(std::move(tree));
  }
  return trees;
}

}  // namespace reader_edge
