// SwiGLU of a row: a SiLU-activated gate times what it gates.
#include "fusion/swiglu.h"
#include "lanes/exponential.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

void swiglu(const float* gate, const float* up, std::size_t count, float* output) {
  for (std::size_t j = 0; j < count; j += kLanes) {
    const Lanes lanes = first_lanes(count - j);
    const Floats value = load(gate + j, lanes);
    const Floats activated = value / (exp_of(min(all(kExpMax), negated(value))) + all(1.0f));
    store(output + j, activated * load(up + j, lanes), lanes);
  }
}

}  // namespace

extern const SwiGluKernels swiglu_kernels{swiglu};

}  // namespace reader_edge::READER_EDGE_LANES
