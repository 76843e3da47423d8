// Rows of a KV cache of eight bits: how they are written, and how large their numbers are.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "kernel.h"
#include "shared_constants.h"
#include "spread.h"

namespace reader_edge {

constexpr std::int64_t kMagnitudeBytes = 2;  // behind the numbers of a row
constexpr int kPartsOrigin = 192;

// 2^exponent, for those of normal numbers.
inline float power_of_two(int exponent) {
  const std::uint32_t bits = static_cast<std::uint32_t>(exponent + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return power;
}

// 64 magnitudes of a row, whatever its last two bytes hold.
inline float magnitude_of(const std::int8_t* last_bytes) {
  int exponent = last_bytes[1];
  if (exponent < kLeastExponent) exponent = kLeastExponent;
  if (exponent > kMostExponent) exponent = kMostExponent;
  return static_cast<float>(last_bytes[0] + kPartsOrigin) * power_of_two(exponent);
}

// key and value (B, H, N, D) -> rows of the cache (B, H, N, D + 2); the key is spread before it is rounded.
class CacheRows {
 public:
  static constexpr const char* kName = "CacheRows";
  // key, stretch, hadamard, value
  static constexpr std::array kInputs{ort::kFloat, ort::kFloat, ort::kFloat, ort::kFloat};
  static constexpr std::array kOutputs{ort::kInt8, ort::kInt8};

  explicit CacheRows(const KernelAttributes& attributes) : spread_(attributes) {}
  void compute(KernelCall& call) const;

 private:
  Spread spread_;
};

}  // namespace reader_edge
