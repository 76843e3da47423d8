// Rows of a KV cache in fp32 or fp16, read as fp32.
#pragma once

#include <cstdint>

#include "attention/attention.h"

namespace reader_edge::READER_EDGE_LANES {

// The rows from a number of the first row on.
inline KvRows rows_from(const KvRows& rows, std::int64_t offset) {
  return rows.floats ? KvRows{rows.floats + offset, nullptr} : KvRows{nullptr, rows.halves + offset};
}

// `count` rows of head_size numbers, a multiple of 8, from row `first` on: where they lie, or in memory of this thread
// until it reads the next.
const float* read_rows(const KvRows& rows, std::int64_t head_size, std::int64_t first, std::int64_t count);

}  // namespace reader_edge::READER_EDGE_LANES
