#include "products/rows/packed_weight.h"

#include <algorithm>
#include <cstring>

#include "machine/weight_memory.h"

namespace reader_edge {
namespace {

std::size_t divided_up(std::size_t value, std::size_t by) { return (value + by - 1) / by; }

}  // namespace

PackedWeight::PackedWeight(const std::int8_t* values, std::size_t num_outputs, std::size_t num_inputs,
                           const PackedLayout& layout)
    : layout_(layout),
      num_outputs_(num_outputs),
      num_inputs_(num_inputs),
      num_chunks_(divided_up(num_inputs, layout.depth) * (layout.depth / layout.inputs)),
      sums_(divided_up(num_outputs, layout.outputs) * layout.outputs) {
  values_ = weight_memory(num_blocks() * block_bytes());
  const PassingRows source({{values, num_inputs}}, num_outputs);
  source.read_all(layout.outputs, [&](std::size_t j) {
    const std::int8_t* const row = values + j * num_inputs;
    std::int8_t* out = values_.get() + j / layout.outputs * block_bytes() + j % layout.outputs * layout.inputs;
    std::int32_t sum = 0;
    for (std::size_t k = 0; k < num_inputs; k += layout.inputs, out += layout.outputs * layout.inputs) {
      const std::size_t size = std::min(layout.inputs, num_inputs - k);
      std::memcpy(out, row + k, size);
      for (std::size_t i = 0; i < size; ++i) sum += row[k + i];
    }
    sums_[j] = sum;
  });
}

}  // namespace reader_edge
