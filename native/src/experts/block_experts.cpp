#include "experts/block_experts.h"

#include <stdexcept>

#include "kernels.h"
#include "machine/scratch.h"

namespace reader_edge {

BlockMatrices::BlockMatrices(const KernelAttributes& attributes) : rotations_(rotations_of_experts(attributes)) {
  const auto values = attributes.constant<std::uint8_t>(4);
  const auto block_scales = attributes.constant<std::int8_t>(5);
  const auto scales = attributes.constant<float>(6);
  const std::size_t num_blocks = (num_inputs() + kBlockInputs - 1) / kBlockInputs;
  const bool is_stack = values.sizes.size() == 4 && values.size(0) == rotations_.size() && values.size(1) > 0 &&
                        values.size(2) == num_blocks && values.size(3) == kBlockBytes;
  if (!is_stack) {
    throw std::invalid_argument("SpreadBlockExperts: its values need experts, outputs, blocks, and 16 bytes a block");
  }
  const std::vector<std::int64_t> blocks(values.sizes.begin(), values.sizes.begin() + 3), outputs(blocks.begin(), blocks.begin() + 2);
  if (block_scales.sizes != blocks || scales.sizes != outputs) {
    throw std::invalid_argument("SpreadBlockExperts: sizes of values and scales do not fit");
  }
  for (std::size_t expert = 0; expert < rotations_.size(); ++expert) {
    const std::size_t first = expert * values.size(1) * num_blocks;
    weights_.emplace_back(values.data + first * kBlockBytes, block_scales.data + first, values.size(1), num_blocks);
  }
  scales_.assign(scales.data, scales.data + scales.count(0, 2));
  for (float& scale : scales_) scale /= kSteps;
}

std::size_t BlockMatrices::row_bytes() const {
  return (weights_[0].num_blocks() + 1) / 2 * 2 * kBlockInputs;  // a multiple of 64, which tiles read
}

std::size_t BlockMatrices::tile_rows() const { return kernels().blocks.tile_rows; }

BlockMatrices::Rows BlockMatrices::rows(const std::size_t* places, std::size_t count) const {
  thread_local Scratch kept_values;
  thread_local Scratch kept_starts, kept_totals;
  thread_local Scratch kept_scales;
  const auto size = static_cast<std::int64_t>(count);
  return {kept_values.take<std::int8_t>(size * static_cast<std::int64_t>(row_bytes())),
          kept_starts.take<std::int32_t>(size * static_cast<std::int64_t>(weights_[0].num_blocks())),
          kept_totals.take<std::int32_t>(size), kept_scales.take<float>(size), places};
}

void BlockMatrices::round(const Rows& rows, std::size_t index, const float* row, std::size_t expert) const {
  thread_local Scratch row_scratch;
  const std::size_t stride = row_bytes(), num_blocks = weights_[0].num_blocks();
  float* const rotated = row_scratch.take<float>(static_cast<std::int64_t>(stride));
  std::int8_t* const bytes = rows.values + index * stride;
  const float largest = rotations_[expert].apply(row, rotated);
  rows.scales[index] = kernels().rounding.round(rotated, largest, num_inputs(), bytes, stride);
  rows.totals[index] = kernels().blocks.order_blocks(bytes, num_blocks, rows.starts + index * num_blocks);
}

void BlockMatrices::multiply(const Rows& rows, std::size_t first_row, std::size_t count, std::size_t expert,
                             std::size_t first, std::size_t last, float* output) const {
  const std::size_t stride = row_bytes();
  const BlockRows group{rows.values + first_row * stride,
                        stride,
                        rows.starts + first_row * weights_[0].num_blocks(),
                        rows.totals + first_row,
                        rows.scales + first_row,
                        rows.places + first_row,
                        count};
  kernels().blocks.multiply_panels(group, weights_[expert], first, last, scales_.data() + expert * num_outputs(), output);
}

}  // namespace reader_edge
