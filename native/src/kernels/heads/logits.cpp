#include "heads/head_guess.h"
#include "lanes/exponential.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

float largest(const float* logits, std::size_t count) {
  Floats top = all(logits[0]);
  for (std::size_t j = 0; j < count; j += kLanes) {
    const Lanes lanes = first_lanes(count - j);
    top = max(where(lanes, load(logits + j, lanes), top), top);
  }
  return largest_of(top);
}

float exponential_sum(const float* logits, float best, std::size_t count) {
  Floats sums = all(0.0f);
  for (std::size_t j = 0; j < count; j += kLanes) {
    const Lanes lanes = first_lanes(count - j);
    sums = sums + where(lanes, exp_of(load(logits + j, lanes) - all(best)), all(0.0f));
  }
  float parts[kLanes], sum = 0;
  store(parts, sums);
  for (const float part : parts) sum += part;
  return sum;
}

}  // namespace

extern const HeadKernels head_kernels{largest, exponential_sum};

}  // namespace reader_edge::READER_EDGE_LANES
