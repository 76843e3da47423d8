#include "products/blocks/block_matrices.h"

#include "kernels.h"
#include "machine/scratch.h"

namespace reader_edge {

BlockMatrices::BlockMatrices(const KernelAttributes& attributes, const MatrixPlace& place)
    : rotations_(rotations(attributes, place.first, place.is_stacked)) {
  const auto values = attributes.constant<std::uint8_t>(place.first + 2);
  const auto block_scales = attributes.constant<std::int8_t>(place.first + 3);
  const auto scales = attributes.constant<float>(place.first + 4);
  const std::size_t rank = 3 + place.is_stacked, num_blocks = (num_inputs() + kBlockInputs - 1) / kBlockInputs;
  const bool fits = values.sizes.size() == rank && values.count(0, rank) > 0 && values.size(rank - 2) == num_blocks &&
                    values.size(rank - 1) == kBlockBytes && values.count(0, rank - 3) == rotations_.size();
  if (!fits) place.refuse("its values need outputs, blocks of the inputs, and 16 bytes a block");
  if (block_scales.sizes != std::vector(values.sizes.begin(), values.sizes.end() - 1)) {
    place.refuse("sizes of values and scales of blocks do not fit");
  }
  if (scales.sizes != std::vector(values.sizes.begin(), values.sizes.end() - 2)) {
    place.refuse("sizes of weight, scales and bias do not fit");
  }
  const std::size_t num_outputs = values.size(rank - 3), num_scales = num_outputs * num_blocks;
  for (std::size_t matrix = 0; matrix < rotations_.size(); ++matrix) {
    const std::size_t first = matrix * num_scales;
    weights_.emplace_back(values.data + first * kBlockBytes, block_scales.data + first, num_outputs, num_blocks);
  }
  scales_.assign(scales.data, scales.data + rotations_.size() * num_outputs);
  for (float& scale : scales_) scale /= kSteps;
}

std::size_t BlockMatrices::row_bytes() const {
  return (weights_[0].num_blocks() + 1) / 2 * 2 * kBlockInputs;  // a multiple of 64, which tiles read
}

std::size_t BlockMatrices::tile_rows() const { return kernels().blocks.tile_rows; }

BlockRows BlockMatrices::rows(const std::size_t* places, std::size_t count) const {
  thread_local Scratch kept_values;
  thread_local Scratch kept_starts, kept_totals;
  thread_local Scratch kept_scales;
  const std::size_t num_blocks = weights_[0].num_blocks();
  const auto size = static_cast<std::int64_t>(count);
  return {kept_values.take<std::int8_t>(static_cast<std::int64_t>(count * row_bytes())),
          row_bytes(),
          kept_starts.take<std::int32_t>(static_cast<std::int64_t>(count * num_blocks)),
          kept_totals.take<std::int32_t>(size),
          kept_scales.take<float>(size),
          places,
          count,
          num_blocks};
}

void BlockMatrices::round(const BlockRows& rows, std::size_t index, const float* row, std::size_t matrix) const {
  thread_local Scratch row_scratch;
  float* const rotated = row_scratch.take<float>(static_cast<std::int64_t>(rows.stride));
  std::int8_t* const bytes = rows.values + index * rows.stride;
  const float largest = rotations_[matrix].apply(row, rotated);
  rows.scales[index] = kernels().rounding.round(rotated, largest, num_inputs(), bytes, rows.stride);
  rows.totals[index] = kernels().blocks.order_blocks(bytes, rows.num_blocks, rows.starts + index * rows.num_blocks);
}

void BlockMatrices::multiply(const BlockRows& rows, std::size_t matrix, std::size_t first, std::size_t last,
                             float* output) const {
  kernels().blocks.multiply_panels(rows, weights_[matrix], first, last, scales_.data() + matrix * num_outputs(), output);
}

}  // namespace reader_edge
