// A matrix in the blocks of a GGUF file, packed once when it is loaded into the order in which matrix products read it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "products/gguf/gguf_type.h"

namespace reader_edge {

constexpr std::size_t kGgufOutputs = 16;       // of a panel
constexpr std::size_t kGgufChunkInputs = 256;  // whose scales lie together before their codes

// Arrays of a package: qs (J, blocks, qs_bytes), two codes a byte, the first in its low half, or one; qh (J, blocks,
// qh_bytes), the bits above, those of the first input lowest; scales and minima (J, blocks / super_block) in fp16, or
// exponents; their codes (J, blocks).
struct GgufArrays {
  const std::uint8_t *qs = nullptr, *qh = nullptr;
  const std::uint16_t* scales = nullptr;
  const std::uint8_t* exponents = nullptr;
  const std::uint8_t* scale_codes = nullptr;
  const std::uint16_t* minima = nullptr;
  const std::uint8_t* minimum_codes = nullptr;
};

// Panels of outputs, each in chunks of inputs. A chunk is scales and minima (blocks, outputs), or (1, outputs) and then
// their codes (blocks, outputs); then its blocks, each: qs, whose every vector holds four inputs of each output, and
// in the high halves of bytes four others, half a block on; then, for every four inputs, 64 bits for each high bit.
class GgufWeight {
 public:
  // Where arrays are mapped from a file, their pages are given back: nobody reads them here again.
  GgufWeight(const GgufType& type, const GgufArrays& arrays, std::size_t num_outputs, std::size_t num_blocks);

  const GgufType& type() const { return type_; }
  std::size_t num_outputs() const { return num_outputs_; }
  std::size_t num_blocks() const { return num_blocks_; }
  std::size_t num_inputs() const { return num_blocks_ * type_.block_inputs; }
  std::size_t num_panels() const { return (num_outputs_ + kGgufOutputs - 1) / kGgufOutputs; }
  std::size_t panel_bytes() const;
  const std::int8_t* panel(std::size_t index) const { return memory_.get() + index * panel_bytes(); }

  std::size_t chunk_blocks() const { return kGgufChunkInputs / type_.block_inputs; }
  std::size_t scale_bytes(std::size_t num_blocks) const;  // of a chunk of so many blocks, a multiple of 64
  std::size_t block_bytes() const { return (type_.qs_bytes() + type_.qh_bytes()) * kGgufOutputs; }
  std::size_t chunk_bytes(std::size_t num_blocks) const { return scale_bytes(num_blocks) + num_blocks * block_bytes(); }

 private:
  void pack_output(const GgufArrays& arrays, std::size_t output);
  void pack_scales(const GgufArrays& arrays, std::size_t output, std::size_t first, std::size_t count, std::int8_t* chunk);
  void pack_block(const std::uint8_t* qs, const std::uint8_t* qh, std::size_t lane, std::int8_t* block);

  GgufType type_;
  std::size_t num_outputs_, num_blocks_;
  std::shared_ptr<std::int8_t> memory_;
};

}  // namespace reader_edge
