// The rotary embedding of one head.
#include "fusion/rotary_heads.h"
#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

// Rounded as ONNX Runtime's RotaryEmbedding rounds it: one product alone, the other with the sum.
void rotate(const float* head, const float* cosines, const float* sines, std::size_t half, float* output) {
  for (std::size_t d = 0; d < half; d += kLanes) {
    const Lanes lanes = first_lanes(half - d);
    const Floats x = load(head + d, lanes), y = load(head + half + d, lanes);
    const Floats cosine = load(cosines + d, lanes), sine = load(sines + d, lanes);
    store(output + d, fms(x, cosine, y * sine), lanes);
    store(output + half + d, fma(x, sine, y * cosine), lanes);
  }
}

}  // namespace

extern const RotaryKernels rotary_kernels{rotate};

}  // namespace reader_edge::READER_EDGE_LANES
