// Rows of a KV cache in fp32 or fp16, read as fp32.
#pragma once

#include <cstdint>

namespace reader_edge {

class KvRows {
 public:
  explicit KvRows(const float* rows) : floats_(rows) {}
  explicit KvRows(const std::uint16_t* rows) : halves_(rows) {}

  // The rows from a number of the first row on.
  KvRows from(std::int64_t offset) const;

  // `count` rows of head_size numbers, a multiple of 8, from row `first` on: where they lie, or in memory of this thread
  // until it reads the next.
  const float* read(std::int64_t head_size, std::int64_t first, std::int64_t count) const;

 private:
  const float* floats_ = nullptr;
  const std::uint16_t* halves_ = nullptr;
};

}  // namespace reader_edge
