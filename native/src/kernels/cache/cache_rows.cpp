// Rounds keys and values to bytes for an int8 KV cache, each row with its largest magnitude behind it.
#include "cache/cache_rows.h"

#include <algorithm>

#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

constexpr float kPartsOfPower = 64.0f, kMostParts = 128.0f;

float largest(const float* row, std::size_t size) {
  Floats top = all(0.0f);
  for (std::size_t d = 0; d < size; d += kLanes) top = max(top, magnitude(load(row + d, first_lanes(size - d))));
  return largest_of(top);
}

int exponent_of(float number) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &number, sizeof bits);
  return std::min(static_cast<int>(bits >> 23) - 127, kMostExponent);
}

// 2^exponent, for those of normal numbers.
float power_of_two(int exponent) {
  const std::uint32_t bits = static_cast<std::uint32_t>(exponent + 127) << 23;
  float power;
  __builtin_memcpy(&power, &bits, sizeof power);
  return power;
}

void round(const float* row, std::size_t size, float largest, std::int8_t* bytes) {
  const float top = std::max(largest, kSmallest);
  const int exponent = exponent_of(top);
  const float power = power_of_two(exponent);
  const float parts = std::min(__builtin_ceilf(top / power * kPartsOfPower), kMostParts);
  const Floats steps_of_one = all(kRowSteps / (parts * power));
  for (std::size_t d = 0; d < size; d += kLanes) {
    const Lanes lanes = first_lanes(size - d);
    store_clamped_bytes(bytes + d, rounded(load(row + d, lanes) * steps_of_one), lanes);
  }
  bytes[size] = static_cast<std::int8_t>(static_cast<int>(parts) - kPartsOrigin);
  bytes[size + 1] = static_cast<std::int8_t>(exponent);
}

}  // namespace

extern const CacheRowKernels cache_row_kernels{largest, round};

}  // namespace reader_edge::READER_EDGE_LANES
