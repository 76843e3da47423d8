#include "products/blocks/block_weight.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "machine/weight_memory.h"

namespace reader_edge {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kLaneBytes = 4;          // inputs of an output that lie together
constexpr std::size_t kMaxInputs = (1 << 24) / (8 * 8 * kMaxBlockScale);  // the definition's sums are exact up to there

std::size_t output_bytes(std::size_t num_blocks) { return num_blocks * kBlockBytes; }

void check_scales(const std::int8_t* scales, std::size_t num_blocks) {
  for (std::size_t block = 0; block < num_blocks; ++block) {
    if (std::abs(scales[block]) > kMaxBlockScale) throw std::invalid_argument("BlockLinear: a scale of a block is beyond 15");
  }
}

}  // namespace

std::size_t BlockWeight::panel_bytes() const {
  const std::size_t bytes = (output_bytes(num_blocks_) + num_blocks_) * kPanelOutputs;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

BlockWeight::BlockWeight(const std::uint8_t* values, const std::int8_t* scales, std::size_t num_outputs,
                         std::size_t num_blocks)
    : num_outputs_(num_outputs), num_blocks_(num_blocks), memory_(weight_memory(num_panels() * panel_bytes())) {
  const std::size_t row_bytes = output_bytes(num_blocks);
  if (num_blocks > kMaxInputs / kBlockInputs) throw std::invalid_argument("BlockLinear: too many inputs for exact sums");
  const PassingRows source({{values, row_bytes}, {scales, num_blocks}}, num_outputs);
  source.read_all(kPanelOutputs, [&](std::size_t j) {
    const std::uint8_t* const row = values + j * row_bytes;
    const std::int8_t* const row_scales = scales + j * num_blocks;
    check_scales(row_scales, num_blocks);
    std::int8_t* const panel = memory_.get() + j / kPanelOutputs * panel_bytes();
    std::int8_t* out = panel + j % kPanelOutputs * kLaneBytes;
    for (std::size_t i = 0; i < row_bytes; i += kLaneBytes, out += kLaneBytes * kPanelOutputs) {
      std::memcpy(out, row + i, kLaneBytes);
    }
    out = panel + row_bytes * kPanelOutputs + j % kPanelOutputs;
    for (std::size_t block = 0; block < num_blocks; ++block) out[block * kPanelOutputs] = row_scales[block];
  });
}

}  // namespace reader_edge
