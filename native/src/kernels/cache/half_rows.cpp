// Rounds keys and values to fp16 for the KV cache; what is too large becomes the largest number of fp16.
#include "cache/half_rows.h"

#include "lanes/lanes.h"
#include "shared_constants.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

void round(const float* numbers, std::size_t count, std::uint16_t* halves) {
  const Floats largest = all(float{kLargestHalf});
  for (std::size_t i = 0; i < count; i += kLanes) {
    const Lanes lanes = first_lanes(count - i);
    store_halves(halves + i, min(max(load(numbers + i, lanes), negated(largest)), largest), lanes);
  }
}

}  // namespace

extern const HalfRowKernels half_row_kernels{round};

}  // namespace reader_edge::READER_EDGE_LANES
