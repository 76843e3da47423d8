#include "products/rows/row_matrices.h"

#include "kernels.h"
#include "machine/scratch.h"

namespace reader_edge {
namespace {

constexpr std::size_t kRowAlignment = 64;

}  // namespace

RowMatrices::RowMatrices(const KernelAttributes& attributes, const MatrixPlace& place, std::size_t num_planes)
    : num_planes_(num_planes) {
  const auto values = attributes.constant<std::int8_t>(place.first + 2);
  const auto scales = attributes.constant<float>(place.first + 3);
  const std::size_t rank = 2 + place.is_stacked;
  if (values.sizes.size() != rank || values.count(0, rank) == 0) place.refuse("its weight needs two axes, inputs and outputs");
  rotations_ = rotations(attributes, place.first, place.is_stacked);
  if (scales.sizes != std::vector(values.sizes.begin(), values.sizes.end() - 1)) {
    place.refuse("sizes of weight, scales and bias do not fit");
  }
  const std::size_t num_outputs = values.size(rank - 2), num_inputs = values.size(rank - 1);
  if (num_inputs != rotations_[0].num_inputs() || values.count(0, rank - 2) != rotations_.size()) {
    place.refuse("sizes of weight and smoothing do not fit");
  }
  for (std::size_t matrix = 0; matrix < rotations_.size(); ++matrix) {
    weights_.emplace_back(values.data + matrix * num_outputs * num_inputs, num_outputs, num_inputs, kernels().rows.layout);
  }
  scales_.assign(scales.data, scales.data + rotations_.size() * num_outputs);
  for (float& scale : scales_) scale /= static_cast<float>(num_planes == 1 ? kSteps : kSteps16);
}

std::size_t RowMatrices::row_bytes() const {
  return (num_inputs() + kRowAlignment - 1) / kRowAlignment * kRowAlignment * num_planes_;
}

std::size_t RowMatrices::tile_rows() const { return kernels().rows.tile_rows; }

QuantizedRows RowMatrices::rows(const std::size_t* places, std::size_t count) const {
  thread_local Scratch kept_values;
  thread_local Scratch kept_scales;
  std::uint8_t* const values = kept_values.take<std::uint8_t>(static_cast<std::int64_t>(count * row_bytes()));
  float* const scales = kept_scales.take<float>(static_cast<std::int64_t>(count));
  return {values, row_bytes() / num_planes_, scales, places, count, num_planes_};
}

void RowMatrices::round(const QuantizedRows& rows, std::size_t index, const float* row, std::size_t matrix) const {
  thread_local Scratch row_scratch;
  float* const rotated = row_scratch.take<float>(static_cast<std::int64_t>(rows.stride));
  const float largest = rotations_[matrix].apply(row, rotated);
  std::uint8_t* const bytes = rows.values + index * num_planes_ * rows.stride;
  const RowRounding& rounding = kernels().rounding;
  rows.scales[index] =
      num_planes_ == 1 ? rounding.round_raised(rotated, largest, num_inputs(), bytes, rows.stride)
                       : rounding.round_16_raised(rotated, largest, num_inputs(), bytes, bytes + rows.stride, rows.stride);
}

void RowMatrices::multiply(const QuantizedRows& rows, std::size_t matrix, std::size_t first, std::size_t last,
                           float* output) const {
  kernels().rows.multiply_blocks(rows, weights_[matrix], first, last, scales_.data() + matrix * num_outputs(), output);
}

}  // namespace reader_edge
