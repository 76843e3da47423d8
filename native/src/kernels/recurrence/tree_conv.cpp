// The short causal convolution of a recurrent layer, channels in lanes: products of all taps, added in their order.
#include "lanes/lanes.h"
#include "recurrence/tree_conv.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

void convolve(const float* const* taps, std::size_t num_taps, const float* weight, std::size_t num_channels,
              std::size_t count, float* output) {
  for (std::size_t c = 0; c < count; c += kLanes) {
    const Lanes lanes = first_lanes(count - c);
    Floats sum = load(taps[0] + c, lanes) * load(weight + c, lanes);
    for (std::size_t tap = 1; tap < num_taps; ++tap) {
      sum = sum + load(taps[tap] + c, lanes) * load(weight + tap * num_channels + c, lanes);
    }
    store(output + c, sum, lanes);
  }
}

}  // namespace

extern const ConvKernels conv_kernels{convolve};

}  // namespace reader_edge::READER_EDGE_LANES
