#include "products/rows/row_linear.h"

#include <algorithm>
#include <stdexcept>

#include "kernels.h"
#include "machine/scratch.h"
#include "products/output_constants.h"
#include "products/row_tasks.h"

namespace reader_edge {
namespace {

constexpr std::size_t kRowAlignment = 64;

std::size_t rounded_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

PackedWeight packed(const Tensor<const std::int8_t>& weight) {
  if (weight.sizes.size() != 2 || weight.size(0) == 0 || weight.size(1) == 0) {
    throw std::invalid_argument("RowLinear: its weight needs two axes, inputs and outputs");
  }
  return {weight.data, weight.size(0), weight.size(1), kernels().rows.layout};
}

}  // namespace

RowLinearBase::RowLinearBase(const KernelAttributes& attributes, std::size_t num_planes, bool has_bias)
    : num_planes_(num_planes), weight_(packed(attributes.constant<std::int8_t>(3))), rotation_(attributes) {
  const float* const scales = of_outputs(attributes, 4, weight_.num_outputs());
  scales_.assign(scales, scales + weight_.num_outputs());
  if (has_bias) bias_ = of_outputs(attributes, 5, weight_.num_outputs());
  if (rotation_.num_inputs() != weight_.num_inputs()) {
    throw std::invalid_argument("RowLinear: sizes of weight and smoothing do not fit");
  }
  for (float& scale : scales_) scale /= static_cast<float>(num_planes_ == 1 ? kSteps : kSteps16);
}

// Rows as bytes, in memory that a thread keeps from call to call.
QuantizedRows RowLinearBase::quantized(KernelCall& call, const float* rows, const DistinctRows& distinct,
                                       const RowTasks& tasks) const {
  thread_local Scratch kept_values;
  thread_local Scratch kept_scales;
  const std::size_t num_inputs = tasks.num_inputs, stride = tasks.row_bytes / num_planes_;
  std::uint8_t* const values = kept_values.take<std::uint8_t>(static_cast<std::int64_t>(tasks.num_rows * tasks.row_bytes));
  float* const scales = kept_scales.take<float>(static_cast<std::int64_t>(tasks.num_rows));
  tasks.round_rows(call, [=](std::size_t index) {
    thread_local Scratch row_scratch;
    const float* const row = rows + distinct.places[index] * num_inputs;
    std::uint8_t* const bytes = values + index * num_planes_ * stride;
    float* const rotated = row_scratch.take<float>(static_cast<std::int64_t>(stride));
    const float largest = rotation_.apply(row, rotated);
    scales[index] = num_planes_ == 1
                        ? kernels().rounding.round_raised(rotated, largest, num_inputs, bytes, stride)
                        : kernels().rounding.round_16_raised(rotated, largest, num_inputs, bytes, bytes + stride, stride);
  });
  return {values, stride, scales, distinct.places, tasks.num_rows, num_planes_};
}

void RowLinearBase::compute(KernelCall& call) const {
  const auto rows = call.input<float>(0);
  const std::size_t rank = rows.sizes.size(), num_outputs = weight_.num_outputs(), num_inputs = weight_.num_inputs();
  if (rank == 0 || rows.size(rank - 1) != num_inputs) {
    throw std::invalid_argument("RowLinear: sizes of rows and weight do not fit");
  }
  auto sizes = rows.sizes;
  sizes.back() = static_cast<std::int64_t>(num_outputs);
  const std::size_t num_rows = rows.count(0, rank - 1);
  float* const output = call.output<float>(0, sizes).data;
  if (num_rows == 0) return;

  const std::size_t row_bytes = rounded_up(num_inputs, kRowAlignment) * num_planes_;
  const DistinctRows distinct = distinct_rows(rows.data, num_rows, num_inputs);
  const RowTasks tasks{distinct.count,           num_inputs,           num_outputs,           row_bytes,
                       kernels().rows.tile_rows, weight_.num_blocks(), weight_.block_bytes()};
  const QuantizedRows all = quantized(call, rows.data, distinct, tasks);
  const auto multiply = kernels().rows.multiply_blocks;
  tasks.multiply(call, [&](std::size_t first_row, std::size_t count, std::size_t first, std::size_t last) {
    const std::size_t* const places = distinct.places + first_row;
    const QuantizedRows group{all.values + first_row * row_bytes, all.stride, all.scales + first_row, places, count,
                              num_planes_};
    multiply(group, weight_, first, last, scales_.data(), output);
    const std::size_t begin = first * weight_.block_outputs();
    const std::size_t end = std::min(last * weight_.block_outputs(), num_outputs);
    if (bias_ != nullptr) add_bias(bias_, begin, end, places, count, output, num_outputs);
    distinct.repeat(first_row, count, begin, end, output, num_outputs);
  });
}

}  // namespace reader_edge
