#include "products/blocks/block_linear.h"

#include <algorithm>
#include <stdexcept>

#include "kernels.h"
#include "machine/scratch.h"
#include "products/output_constants.h"

namespace reader_edge {
namespace {

BlockWeight packed(const KernelAttributes& attributes, std::size_t num_inputs) {
  const auto values = attributes.constant<std::uint8_t>(3);
  const auto scales = attributes.constant<std::int8_t>(4);
  const std::size_t num_blocks = (num_inputs + kBlockInputs - 1) / kBlockInputs;
  if (values.sizes.size() != 3 || values.size(0) == 0 || values.size(1) != num_blocks || values.size(2) != kBlockBytes) {
    throw std::invalid_argument("BlockLinear: its values need outputs, blocks of the inputs, and 16 bytes a block");
  }
  if (scales.sizes.size() != 2 || scales.size(0) != values.size(0) || scales.size(1) != num_blocks) {
    throw std::invalid_argument("BlockLinear: sizes of values and scales of blocks do not fit");
  }
  return {values.data, scales.data, values.size(0), num_blocks};
}

}  // namespace

BlockLinear::BlockLinear(const KernelAttributes& attributes, bool has_bias)
    : rotation_(attributes), weight_(packed(attributes, rotation_.num_inputs())) {
  const float* const scales = of_outputs(attributes, 5, weight_.num_outputs());
  scales_.assign(scales, scales + weight_.num_outputs());
  for (float& scale : scales_) scale /= kSteps;
  if (has_bias) bias_ = of_outputs(attributes, 6, weight_.num_outputs());
}

// Rows as bytes, in memory that a thread keeps from call to call.
BlockRows BlockLinear::rounded(KernelCall& call, const float* rows, const DistinctRows& distinct,
                               const RowTasks& tasks) const {
  thread_local Scratch kept_values;
  thread_local Scratch kept_starts, kept_totals;
  thread_local Scratch kept_scales;
  const std::size_t num_inputs = tasks.num_inputs, stride = tasks.row_bytes, num_blocks = weight_.num_blocks();
  std::int8_t* const values = kept_values.take<std::int8_t>(static_cast<std::int64_t>(tasks.num_rows * stride));
  std::int32_t* const starts = kept_starts.take<std::int32_t>(static_cast<std::int64_t>(tasks.num_rows * num_blocks));
  std::int32_t* const totals = kept_totals.take<std::int32_t>(static_cast<std::int64_t>(tasks.num_rows));
  float* const scales = kept_scales.take<float>(static_cast<std::int64_t>(tasks.num_rows));
  tasks.round_rows(call, [=](std::size_t index) {
    thread_local Scratch row_scratch;
    float* const rotated = row_scratch.take<float>(static_cast<std::int64_t>(stride));
    std::int8_t* const bytes = values + index * stride;
    const float largest = rotation_.apply(rows + distinct.places[index] * num_inputs, rotated);
    scales[index] = kernels().rounding.round(rotated, largest, num_inputs, bytes, stride);
    totals[index] = kernels().blocks.order_blocks(bytes, num_blocks, starts + index * num_blocks);
  });
  return {values, stride, starts, totals, scales, distinct.places, tasks.num_rows};
}

void BlockLinear::compute(KernelCall& call) const {
  const auto rows = call.input<float>(0);
  const std::size_t rank = rows.sizes.size(), num_outputs = weight_.num_outputs(), num_inputs = rotation_.num_inputs();
  if (rank == 0 || rows.size(rank - 1) != num_inputs) {
    throw std::invalid_argument("BlockLinear: sizes of rows and weight do not fit");
  }
  auto sizes = rows.sizes;
  sizes.back() = static_cast<std::int64_t>(num_outputs);
  const std::size_t num_rows = rows.count(0, rank - 1), num_blocks = weight_.num_blocks();
  float* const output = call.output<float>(0, sizes).data;
  if (num_rows == 0) return;

  const std::size_t row_bytes = (num_blocks + 1) / 2 * 2 * kBlockInputs;  // a multiple of 64, which tiles read
  const DistinctRows distinct = distinct_rows(rows.data, num_rows, num_inputs);
  const RowTasks tasks{distinct.count,             num_inputs,            num_outputs,          row_bytes,
                       kernels().blocks.tile_rows, weight_.num_panels(), weight_.panel_bytes()};
  const BlockRows all = rounded(call, rows.data, distinct, tasks);
  tasks.multiply(call, [&](std::size_t first_row, std::size_t count, std::size_t first, std::size_t last) {
    const BlockRows group{all.values + first_row * all.stride, all.stride, all.starts + first_row * num_blocks,
                          all.totals + first_row, all.scales + first_row, all.places + first_row, count};
    kernels().blocks.multiply_panels(group, weight_, first, last, scales_.data(), output);
    const std::size_t begin = first * kPanelOutputs, end = std::min(last * kPanelOutputs, num_outputs);
    if (bias_ != nullptr) add_bias(bias_, begin, end, group.places, count, output, num_outputs);
    distinct.repeat(first_row, count, begin, end, output, num_outputs);
  });
}

}  // namespace reader_edge
