#include "experts/row_experts.h"

#include <stdexcept>

#include "kernels.h"
#include "machine/scratch.h"

namespace reader_edge {
namespace {

constexpr std::size_t kRowAlignment = 64;

}  // namespace

RowMatrices::RowMatrices(const KernelAttributes& attributes, std::size_t num_planes)
    : num_planes_(num_planes), rotations_(rotations_of_experts(attributes)) {
  const auto values = attributes.constant<std::int8_t>(4);
  const auto scales = attributes.constant<float>(5);
  const bool fits = values.sizes.size() == 3 && scales.sizes.size() == 2 && values.size(0) == rotations_.size() &&
                    values.size(1) > 0 && values.size(2) == rotations_[0].num_inputs() && scales.size(0) == values.size(0) &&
                    scales.size(1) == values.size(1);
  if (!fits) throw std::invalid_argument("SpreadRowExperts: sizes of smoothing, values and scales do not fit");
  const std::size_t num_outputs = values.size(1), num_inputs = values.size(2);
  for (std::size_t expert = 0; expert < values.size(0); ++expert) {
    weights_.emplace_back(values.data + expert * num_outputs * num_inputs, num_outputs, num_inputs, kernels().rows.layout);
  }
  scales_.assign(scales.data, scales.data + scales.count(0, 2));
  for (float& scale : scales_) scale /= static_cast<float>(num_planes == 1 ? kSteps : kSteps16);
}

std::size_t RowMatrices::row_bytes() const {
  return (num_inputs() + kRowAlignment - 1) / kRowAlignment * kRowAlignment * num_planes_;
}

std::size_t RowMatrices::tile_rows() const { return kernels().rows.tile_rows; }

RowMatrices::Rows RowMatrices::rows(const std::size_t* places, std::size_t count) const {
  thread_local Scratch kept_values;
  thread_local Scratch kept_scales;
  const auto size = static_cast<std::int64_t>(count);
  std::uint8_t* const values = kept_values.take<std::uint8_t>(size * static_cast<std::int64_t>(row_bytes()));
  return {values, row_bytes() / num_planes_, kept_scales.take<float>(size), places};
}

void RowMatrices::round(const Rows& rows, std::size_t index, const float* row, std::size_t expert) const {
  thread_local Scratch row_scratch;
  float* const rotated = row_scratch.take<float>(static_cast<std::int64_t>(rows.stride));
  const float largest = rotations_[expert].apply(row, rotated);
  std::uint8_t* const bytes = rows.values + index * row_bytes();
  const RowRounding& rounding = kernels().rounding;
  rows.scales[index] =
      num_planes_ == 1 ? rounding.round_raised(rotated, largest, num_inputs(), bytes, rows.stride)
                       : rounding.round_16_raised(rotated, largest, num_inputs(), bytes, bytes + rows.stride, rows.stride);
}

void RowMatrices::multiply(const Rows& rows, std::size_t first_row, std::size_t count, std::size_t expert,
                           std::size_t first, std::size_t last, float* output) const {
  const QuantizedRows group{rows.values + first_row * row_bytes(), rows.stride, rows.scales + first_row,
                            rows.places + first_row,                count,       num_planes_};
  kernels().rows.multiply_blocks(group, weights_[expert], first, last, scales_.data() + expert * num_outputs(), output);
}

}  // namespace reader_edge
