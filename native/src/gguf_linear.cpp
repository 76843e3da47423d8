#include "gguf_linear.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels.h"
#include "scratch.h"

namespace reader_edge {
namespace {

constexpr std::size_t kMaxInputs = 1 << 24;  // of a row; sizes in bytes stay far from overflow

// Constants of a node, one after another, each of the sizes that the values' give it.
class Constants {
 public:
  Constants(const KernelAttributes& attributes, const GgufType& type) : attributes_(attributes), type_(type) {
    const auto values = attributes.constant<std::uint8_t>(1);
    if (values.sizes.size() != 3 || values.size(0) == 0 || values.size(1) == 0 || values.size(2) != type.value_bytes()) {
      refuse("its values need outputs, blocks, and bytes of a block");
    }
    num_outputs = values.size(0), num_blocks = values.size(1);
    if (num_blocks % type.nested != 0 || num_blocks > kMaxInputs / type.block_inputs) {
      refuse("its number of blocks is out of range");
    }
  }

  template <class Element>
  const Element* next(std::size_t columns, std::size_t bytes = 0) {
    const auto constant = attributes_.constant<Element>(index_++);
    const bool fits = constant.sizes.size() == (bytes == 0 ? 2 : 3) && constant.size(0) == num_outputs &&
                      constant.size(1) == columns && (bytes == 0 || constant.size(2) == bytes);
    if (!fits) refuse("sizes of its constants do not fit");
    return constant.data;
  }

  std::size_t num_outputs = 0, num_blocks = 0;

 private:
  [[noreturn]] void refuse(const char* reason) const {
    throw std::invalid_argument(std::string(type_.name) + ": " + reason);
  }

  const KernelAttributes& attributes_;
  const GgufType& type_;
  std::size_t index_ = 1;
};

GgufWeight packed(const KernelAttributes& attributes, const GgufType& type) {
  Constants constants(attributes, type);
  const std::size_t num_blocks = constants.num_blocks, numbers = num_blocks / type.nested;
  GgufArrays arrays;
  arrays.values = constants.next<std::uint8_t>(num_blocks, type.value_bytes());
  if (type.high_bits() > 0) arrays.highs = constants.next<std::uint8_t>(num_blocks, type.high_bytes());
  arrays.scales = constants.next<std::uint16_t>(numbers);
  if (type.is_nested()) arrays.scale_codes = constants.next<std::uint8_t>(num_blocks);
  if (type.has_minima) arrays.minima = constants.next<std::uint16_t>(numbers);
  if (type.has_minima && type.is_nested()) arrays.minimum_codes = constants.next<std::uint8_t>(num_blocks);
  return {type, arrays, constants.num_outputs, num_blocks};
}

}  // namespace

GgufProduct::GgufProduct(const KernelAttributes& attributes, const GgufType& type) : weight_(packed(attributes, type)) {}

// Rows as bytes, in memory that a thread keeps from call to call.
GgufRows GgufProduct::rounded(KernelCall& call, const float* rows, const DistinctRows& distinct,
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

void GgufProduct::compute(KernelCall& call) const {
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
