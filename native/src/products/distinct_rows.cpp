#include "products/distinct_rows.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "machine/scratch.h"

namespace reader_edge {

void DistinctRows::repeat(std::size_t begin, std::size_t many, std::size_t first, std::size_t last, float* output,
                          std::size_t num_outputs) const {
  for (std::size_t row = begin; row < begin + many; ++row) {
    const float* const computed = output + places[row] * num_outputs;
    for (std::size_t place = places[row] + 1; place < places[row + 1]; ++place) {
      std::copy(computed + first, computed + last, output + place * num_outputs + first);
    }
  }
}

DistinctRows distinct_rows(const float* rows, std::size_t num_rows, std::size_t num_inputs) {
  thread_local Scratch kept_places;
  std::size_t* const places = kept_places.take<std::size_t>(static_cast<std::int64_t>(num_rows + 1));
  std::size_t count = 0;
  for (std::size_t row = 0; row < num_rows; ++row) {
    const float* const values = rows + row * num_inputs;
    // By their bits: equal numbers such as zeros of both signs may differ in what comes of them.
    const bool is_repeated = row > 0 && std::memcmp(values - num_inputs, values, num_inputs * sizeof(float)) == 0;
    if (!is_repeated) places[count++] = row;
  }
  places[count] = num_rows;
  return {places, count};
}

}  // namespace reader_edge
