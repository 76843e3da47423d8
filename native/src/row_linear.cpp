#include "row_linear.h"

#include <algorithm>
#include <stdexcept>

namespace reader_edge {
namespace {

constexpr std::size_t kTaskBytes = 48 * 1024;       // of weights: many tasks a thread, so that they end together
constexpr std::size_t kSerialBytes = 32 * 1024;     // of weights times rows: less is not worth waking threads
constexpr std::size_t kBlockBytes = 384 * 1024;     // of quantised rows: they stay in a core's own cache
constexpr std::size_t kOutputsPerTile = 4;

std::size_t divided_up(std::size_t value, std::size_t by) { return (value + by - 1) / by; }
std::size_t rounded_up(std::size_t value, std::size_t to) { return divided_up(value, to) * to; }

}  // namespace

RowLinear::RowLinear(const KernelAttributes& attributes) : kernels_(product_kernels()) {
  const auto weight = attributes.constant<std::int8_t>(1);
  const std::size_t num_outputs = weight.size(0), num_inputs = weight.size(1);
  row_sums_.resize(num_outputs);
  for (std::size_t j = 0; j < num_outputs; ++j) {
    const std::int8_t* row = weight.data + j * num_inputs;
    std::int32_t sum = 0;
    for (std::size_t k = 0; k < num_inputs; ++k) sum += row[k];
    row_sums_[j] = sum;
  }
}

void RowLinear::compute(KernelCall& call) const {
  const auto rows = call.input<float>(0);
  const auto weight = call.input<std::int8_t>(1);
  const auto scales = call.input<float>(2);
  const std::size_t rank = rows.sizes.size(), num_outputs = weight.size(0), num_inputs = weight.size(1);
  if (rank == 0 || rows.size(rank - 1) != num_inputs || scales.count(0, scales.sizes.size()) != num_outputs ||
      num_outputs != row_sums_.size()) {
    throw std::invalid_argument("RowLinear: sizes of rows, weight and scales do not fit");
  }
  auto sizes = rows.sizes;
  sizes.back() = weight.sizes[0];
  const std::size_t num_rows = rows.count(0, rank - 1);
  float* output = call.output<float>(0, sizes).data;
  if (num_rows == 0) return;

  const std::size_t stride = rounded_up(num_inputs, kRowPadding);
  thread_local std::vector<std::uint8_t> values;
  thread_local std::vector<float> row_scales;
  values.resize(num_rows * stride);
  row_scales.resize(num_rows);
  std::uint8_t* const quantized = values.data();
  float* const quantized_scales = row_scales.data();
  const auto quantize = [&](std::size_t row) {
    quantized_scales[row] =
        kernels_.quantize(rows.data + row * num_inputs, num_inputs, quantized + row * stride, stride);
  };

  const bool is_serial = num_rows * num_inputs * num_outputs <= kSerialBytes;
  if (num_rows * num_inputs <= 16 * 1024) {
    for (std::size_t row = 0; row < num_rows; ++row) quantize(row);
  } else {
    call.parallel_for(num_rows, quantize);
  }

  const std::size_t block_rows = std::max<std::size_t>(kBlockBytes / stride / 6 * 6, 6);
  const std::size_t num_blocks = divided_up(num_rows, block_rows);
  const std::size_t task_outputs =
      is_serial ? num_outputs : rounded_up(std::max<std::size_t>(kTaskBytes / num_inputs, 1), kOutputsPerTile);
  const std::size_t tasks_per_block = divided_up(num_outputs, task_outputs);
  const auto multiply = [&](std::size_t task) {
    const std::size_t first_row = task / tasks_per_block * block_rows;
    const std::size_t first = task % tasks_per_block * task_outputs;
    const QuantizedRows block{quantized + first_row * stride, stride, quantized_scales + first_row,
                              std::min(block_rows, num_rows - first_row)};
    const WeightRows wanted{weight.data, num_inputs, scales.data, row_sums_.data(),
                            first,       std::min(first + task_outputs, num_outputs)};
    kernels_.multiply(block, wanted, output + first_row * num_outputs, num_outputs);
  };
  if (num_blocks * tasks_per_block == 1) {
    multiply(0);
  } else {
    call.parallel_for(num_blocks * tasks_per_block, multiply);
  }
}

}  // namespace reader_edge
