#include "products/gguf/gguf_linear.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels.h"
#include "machine/scratch.h"

namespace reader_edge {

GgufLinearBase::GgufLinearBase(const KernelAttributes& attributes, const GgufType& type)
    : weight_(std::move(gguf_weights(attributes, type, {type.name, 1, false}).front())) {}

// Rows as bytes, in memory that a thread keeps from call to call.
GgufRows GgufLinearBase::rounded(KernelCall& call, const float* rows, const DistinctRows& distinct,
                                 const RowTasks& tasks) const {
  thread_local Scratch kept_values;
  thread_local Scratch kept_scales, kept_sums;
  thread_local Scratch kept_offsets;
  const std::size_t num_blocks = weight_.num_blocks();
  const auto count = static_cast<std::int64_t>(tasks.num_rows * num_blocks);
  const GgufRows all{kept_values.take<std::int8_t>(static_cast<std::int64_t>(tasks.num_rows * tasks.row_bytes)),
                     tasks.row_bytes,
                     kept_scales.take<float>(count),
                     kept_offsets.take<std::int32_t>(count),
                     kept_sums.take<float>(count),
                     distinct.places,
                     tasks.num_rows,
                     num_blocks};
  tasks.round_rows(call, [&](std::size_t index) {
    kernels().gguf.round_blocks(rows + distinct.places[index] * tasks.num_inputs, weight_.type(), all, index);
  });
  return all;
}

void GgufLinearBase::compute(KernelCall& call) const {
  const auto rows = call.input<float>(0);
  const std::size_t rank = rows.sizes.size(), num_outputs = weight_.num_outputs(), num_inputs = weight_.num_inputs();
  if (rank == 0 || rows.size(rank - 1) != num_inputs) {
    throw std::invalid_argument(std::string(weight_.type().name) + ": sizes of rows and weight do not fit");
  }
  auto sizes = rows.sizes;
  sizes.back() = static_cast<std::int64_t>(num_outputs);
  const std::size_t num_rows = rows.count(0, rank - 1);
  float* const output = call.output<float>(0, sizes).data;
  if (num_rows == 0) return;

  const DistinctRows distinct = distinct_rows(rows.data, num_rows, num_inputs);
  const RowTasks tasks{distinct.count,           num_inputs,            num_outputs,          num_inputs,
                       kernels().gguf.tile_rows, weight_.num_panels(), weight_.panel_bytes()};
  const GgufRows all = rounded(call, rows.data, distinct, tasks);
  const auto multiply = kernels().gguf.multiply_panel;
  tasks.multiply(call, [&](std::size_t first_row, std::size_t count, std::size_t first, std::size_t last) {
    const GgufRows group = all.from(first_row, count);
    for (std::size_t panel = first; panel < last; ++panel) multiply(group, weight_, panel, output);
    distinct.repeat(first_row, count, first * kGgufOutputs, std::min(last * kGgufOutputs, num_outputs), output,
                    num_outputs);
  });
}

}  // namespace reader_edge
