// An int8 matrix in the order in which products read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace reader_edge {

constexpr std::size_t kBlockOutputs = 16;
constexpr std::size_t kChunk = 16;  // inputs of an output that lie together
constexpr std::size_t kStep = kBlockOutputs * kChunk;

// values (blocks, chunks, kBlockOutputs, kChunk), filled up with zeros. sums: of each output's row, likewise.
class PackedWeight {
 public:
  // A row-major matrix (J, K). Where it is mapped from a file, its pages are given back: nobody reads it here again.
  PackedWeight(const std::int8_t* values, std::size_t num_outputs, std::size_t num_inputs);

  std::size_t num_outputs() const { return num_outputs_; }
  std::size_t num_inputs() const { return num_inputs_; }
  std::size_t num_chunks() const { return num_chunks_; }
  std::size_t num_blocks() const { return sums_.size() / kBlockOutputs; }
  std::size_t block_bytes() const { return num_chunks_ * kStep; }
  const std::int8_t* block(std::size_t index) const { return values_.get() + index * block_bytes(); }
  const std::int32_t* sums(std::size_t index) const { return sums_.data() + index * kBlockOutputs; }

 private:
  std::size_t num_outputs_, num_inputs_, num_chunks_;
  std::shared_ptr<std::int8_t> values_;
  std::vector<std::int32_t> sums_;
};

}  // namespace reader_edge
