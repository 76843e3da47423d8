#include "row_linear.h"

#include <algorithm>
#include <stdexcept>

#include "scratch.h"

namespace reader_edge {
namespace {

constexpr std::size_t kTaskBytes = 48 * 1024;    // of weights: many tasks a thread, so that threads end together
constexpr std::size_t kGroupBytes = 384 * 1024;  // of quantised rows: they stay in a core's own cache
constexpr std::size_t kRowAlignment = 64;
constexpr std::size_t kSerialProducts = 64 * 1024;   // fewer are not worth waking threads
constexpr std::size_t kSerialQuantized = 16 * 1024;  // values, likewise

std::size_t divided_up(std::size_t value, std::size_t by) { return (value + by - 1) / by; }
std::size_t rounded_up(std::size_t value, std::size_t to) { return divided_up(value, to) * to; }

// Outputs [first, last) of each row, while they are in a core's own cache.
void add_bias(const float* bias, std::size_t first, std::size_t last, std::size_t num_rows, float* output,
              std::size_t stride) {
  for (std::size_t row = 0; row < num_rows; ++row) {
    for (std::size_t j = first; j < last; ++j) output[row * stride + j] += bias[j];
  }
}

PackedWeight packed(const Tensor<const std::int8_t>& weight) {
  if (weight.sizes.size() != 2 || weight.size(0) == 0 || weight.size(1) == 0) {
    throw std::invalid_argument("RowLinear: its weight needs two axes, inputs and outputs");
  }
  return {weight.data, weight.size(0), weight.size(1)};
}

// A constant with a number for each output.
const float* of_outputs(const KernelAttributes& attributes, std::size_t input, std::size_t num_outputs) {
  const auto constant = attributes.constant<float>(input);
  if (constant.sizes.size() != 1 || constant.size(0) != num_outputs) {
    throw std::invalid_argument("RowLinear: sizes of weight, scales and bias do not fit");
  }
  return constant.data;
}

}  // namespace

RowProduct::RowProduct(const KernelAttributes& attributes, const RowForm& form)
    : num_planes_(form.num_planes), weight_(packed(attributes.constant<std::int8_t>(form.weight_input()))) {
  const float* const scales = of_outputs(attributes, form.weight_input() + 1, weight_.num_outputs());
  scales_.assign(scales, scales + weight_.num_outputs());
  if (form.has_bias) bias_ = of_outputs(attributes, form.weight_input() + 2, weight_.num_outputs());
  if (!form.is_spread) return;
  spread_.emplace(attributes);
  if (spread_->num_inputs() != weight_.num_inputs()) {
    throw std::invalid_argument("RowLinear: sizes of weight and stretch do not fit");
  }
  for (float& scale : scales_) scale /= num_planes_ == 1 ? kSteps : kSteps16;
}

// Rows as bytes, in memory that a thread keeps from call to call.
QuantizedRows RowProduct::quantized(KernelCall& call, const float* rows, std::size_t num_rows) const {
  thread_local Scratch<std::uint8_t> kept_values;
  thread_local Scratch<float> kept_scales;
  const std::size_t num_inputs = weight_.num_inputs(), stride = rounded_up(num_inputs, kRowAlignment);
  std::uint8_t* const values = kept_values.take(static_cast<std::int64_t>(num_rows * num_planes_ * stride));
  float* const scales = kept_scales.take(static_cast<std::int64_t>(num_rows));
  const auto quantize = [=](std::size_t index) {
    thread_local Scratch<float> kept_row;
    const float* const row = rows + index * num_inputs;
    std::uint8_t* const bytes = values + index * num_planes_ * stride;
    if (!spread_) {
      scales[index] = quantize_row(row, num_inputs, bytes, stride);
      return;
    }
    float* const spread = kept_row.take(static_cast<std::int64_t>(stride));
    const float largest = spread_->apply(row, spread);
    scales[index] = num_planes_ == 1
                        ? round_row(spread, largest, num_inputs, bytes, stride)
                        : round_row_16(spread, largest, num_inputs, bytes, bytes + stride, stride);
  };
  if (num_rows * num_inputs <= kSerialQuantized) {
    for (std::size_t row = 0; row < num_rows; ++row) quantize(row);
  } else {
    call.parallel_for(num_rows, quantize);
  }
  return {values, stride, scales, num_rows, num_planes_};
}

void RowProduct::compute(KernelCall& call) const {
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

  // A task is a group of rows times a run of blocks; all rows of a group share each read of the weights.
  const QuantizedRows all = quantized(call, rows.data, num_rows);
  const std::size_t row_bytes = all.stride * num_planes_;
  const std::size_t group_rows = std::max(kGroupBytes / row_bytes / kTileRows * kTileRows, kTileRows);
  const bool is_serial = num_rows * num_inputs * num_outputs <= kSerialProducts;
  const std::size_t run = is_serial ? weight_.num_blocks() : divided_up(kTaskBytes, weight_.block_bytes());
  const std::size_t num_runs = divided_up(weight_.num_blocks(), run);
  const auto multiply_task = [&](std::size_t task) {
    const std::size_t first_row = task / num_runs * group_rows, first = task % num_runs * run;
    const std::size_t last = std::min(first + run, weight_.num_blocks());
    const QuantizedRows group{all.values + first_row * row_bytes, all.stride, all.scales + first_row,
                              std::min(group_rows, num_rows - first_row), num_planes_};
    float* const outputs = output + first_row * num_outputs;
    for (std::size_t block = first; block < last; ++block) multiply_block(group, weight_, block, scales_.data(), outputs);
    if (bias_ != nullptr) {
      const std::size_t end = std::min(last * kBlockOutputs, num_outputs);
      add_bias(bias_, first * kBlockOutputs, end, group.count, outputs, num_outputs);
    }
  };
  const std::size_t num_tasks = divided_up(num_rows, group_rows) * num_runs;
  if (num_tasks == 1) {
    multiply_task(0);
  } else {
    call.parallel_for(num_tasks, multiply_task);
  }
}

}  // namespace reader_edge
