// An int8 matrix, packed once when it is loaded into the order in which matrix products read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace reader_edge {

// The order that a set's products read: (blocks, chunks, outputs, inputs), those of a block of outputs and of a chunk of
// inputs; chunks go up to a multiple of `depth` inputs.
struct PackedLayout {
  std::size_t outputs, inputs, depth;
};

// values as its layout says, filled up with zeros. sums: of each output's row, likewise.
class PackedWeight {
 public:
  // A row-major matrix (J, K). Where it is mapped from a file, its pages are given back: nobody reads it here again.
  PackedWeight(const std::int8_t* values, std::size_t num_outputs, std::size_t num_inputs,
               const PackedLayout& layout);

  std::size_t num_outputs() const { return num_outputs_; }
  std::size_t num_inputs() const { return num_inputs_; }
  std::size_t num_chunks() const { return num_chunks_; }
  std::size_t block_outputs() const { return layout_.outputs; }
  std::size_t num_blocks() const { return sums_.size() / layout_.outputs; }
  std::size_t block_bytes() const { return num_chunks_ * layout_.outputs * layout_.inputs; }
  const std::int8_t* block(std::size_t index) const { return values_.get() + index * block_bytes(); }
  const std::int32_t* sums(std::size_t index) const { return sums_.data() + index * layout_.outputs; }

 private:
  PackedLayout layout_;
  std::size_t num_outputs_, num_inputs_, num_chunks_;
  std::shared_ptr<std::int8_t> values_;
  std::vector<std::int32_t> sums_;
};

}  // namespace reader_edge
