// A 4-bit matrix with a scale for each block of inputs, packed once into the order in which matrix products read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "shared_constants.h"

namespace reader_edge {

constexpr std::size_t kPanelOutputs = 32;
constexpr std::size_t kBlockBytes = kBlockInputs / 2;  // of an output

// Panels of outputs, one after another: values (blocks, kBlockBytes / 4, kPanelOutputs, 4), then scales (blocks,
// kPanelOutputs), filled up with zeros. A byte holds two inputs, the first in its low half.
class BlockWeight {
 public:
  // values (J, blocks, kBlockBytes), scales (J, blocks). Where they are mapped from a file, their pages are given back:
  // nobody reads them here again. Throws where scales or sums could overflow.
  BlockWeight(const std::uint8_t* values, const std::int8_t* scales, std::size_t num_outputs, std::size_t num_blocks);

  std::size_t num_outputs() const { return num_outputs_; }
  std::size_t num_blocks() const { return num_blocks_; }
  std::size_t num_panels() const { return (num_outputs_ + kPanelOutputs - 1) / kPanelOutputs; }
  std::size_t panel_bytes() const;
  const std::int8_t* values(std::size_t panel) const { return memory_.get() + panel * panel_bytes(); }
  const std::int8_t* scales(std::size_t panel) const {
    return values(panel) + num_blocks_ * kBlockBytes * kPanelOutputs;
  }

 private:
  std::size_t num_outputs_, num_blocks_;
  std::shared_ptr<std::int8_t> memory_;
};

}  // namespace reader_edge
