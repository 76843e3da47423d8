#include "swiglu.h"

#include <immintrin.h>

#include <algorithm>
#include <stdexcept>

#include "exponential.h"

namespace reader_edge {
namespace {

constexpr std::size_t kLanes = 16;
constexpr std::size_t kTaskColumns = 2048;
constexpr std::size_t kSerialElements = 8 * 1024;  // fewer are not worth waking threads

void gated(const float* gate, const float* up, std::size_t count, float* output) {
  const __m512 one = _mm512_set1_ps(1.0f), most = _mm512_set1_ps(kExpMax);
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  for (std::size_t j = 0; j < count; j += kLanes) {
    const __mmask16 mask = count - j >= kLanes ? 0xffff : static_cast<__mmask16>((1u << (count - j)) - 1);
    const __m512 value = _mm512_maskz_loadu_ps(mask, gate + j);
    const __m512 negated = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(value), sign));
    const __m512 activated = _mm512_div_ps(value, _mm512_add_ps(exp_of(_mm512_min_ps(most, negated)), one));
    _mm512_mask_storeu_ps(output + j, mask, _mm512_mul_ps(activated, _mm512_maskz_loadu_ps(mask, up + j)));
  }
}

}  // namespace

void SwiGlu::compute(KernelCall& call) const {
  const auto gate_up = call.input<float>(0);
  const std::size_t rank = gate_up.sizes.size();
  if (rank == 0 || gate_up.sizes.back() % 2 != 0) throw std::invalid_argument("SwiGLU: its input has no two halves");
  auto sizes = gate_up.sizes;
  sizes.back() /= 2;
  float* const output = call.output<float>(0, sizes).data;
  const std::size_t width = gate_up.size(rank - 1) / 2, num_rows = gate_up.count(0, rank - 1);

  // A task is a run of columns of a row.
  const std::size_t num_runs = (width + kTaskColumns - 1) / kTaskColumns;
  const auto compute_run = [&](std::size_t task) {
    const std::size_t row = task / num_runs, first = task % num_runs * kTaskColumns;
    const float* const gate = gate_up.data + row * 2 * width + first;
    gated(gate, gate + width, std::min(kTaskColumns, width - first), output + row * width + first);
  };
  if (num_rows * width <= kSerialElements) {
    for (std::size_t task = 0; task < num_rows * num_runs; ++task) compute_run(task);
  } else {
    call.parallel_for(num_rows * num_runs, compute_run);
  }
}

}  // namespace reader_edge
