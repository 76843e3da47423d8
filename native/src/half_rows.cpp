#include "half_rows.h"

#include <immintrin.h>

#include <cstdint>

#include "shared_constants.h"

namespace reader_edge {
namespace {

constexpr std::size_t kLanes = 16;

void round_numbers(const float* numbers, std::size_t count, std::uint16_t* halves) {
  const __m512 largest = _mm512_set1_ps(kLargestHalf), smallest = _mm512_set1_ps(-kLargestHalf);
  for (std::size_t i = 0; i < count; i += kLanes) {
    const std::size_t left = count - i;
    const __mmask16 lanes = left >= kLanes ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
    const __m512 within = _mm512_min_ps(_mm512_max_ps(_mm512_maskz_loadu_ps(lanes, numbers + i), smallest), largest);
    _mm256_mask_storeu_epi16(halves + i, lanes, _mm512_cvtps_ph(within, _MM_FROUND_TO_NEAREST_INT));
  }
}

}  // namespace

void HalfRows::compute(KernelCall& call) const {
  for (std::size_t index = 0; index < kInputs.size(); ++index) {
    const auto numbers = call.input<float>(index);
    round_numbers(numbers.data, numbers.count(0, numbers.sizes.size()),
                  call.output<std::uint16_t>(index, numbers.sizes).data);
  }
}

}  // namespace reader_edge
