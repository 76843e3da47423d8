#include "kernels/attention/kv_rows.h"

#include "lanes/lanes.h"
#include "machine/scratch.h"

namespace reader_edge::READER_EDGE_LANES {

const float* read_rows(const KvRows& rows, std::int64_t head_size, std::int64_t first, std::int64_t count) {
  if (rows.floats) return rows.floats + first * head_size;
  static thread_local Scratch scratch;
  const auto size = static_cast<std::size_t>(count * head_size);
  const std::uint16_t* const halves = rows.halves + first * head_size;
  float* const numbers = scratch.take<float>(static_cast<std::int64_t>(size + kLanes));
  std::size_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(numbers + i, load_halves(halves + i));
  if (i < size) store(numbers + i, load_halves(halves + i, first_lanes(size - i)));
  return numbers;
}

}  // namespace reader_edge::READER_EDGE_LANES
