// The operator `CacheRows`: keys and values rounded to bytes as they are written to an int8 KV cache, with a scale a
// row.
#pragma once

#include <array>
#include <cstdint>

#include "onnxruntime/kernel.h"
#include "rounding/hadamard.h"
#include "shared_constants.h"

namespace reader_edge {

constexpr std::int64_t kMagnitudeBytes = 2;  // behind the numbers of a row
constexpr int kPartsOrigin = 192;

struct CacheRowKernels {
  float (*largest)(const float* row, std::size_t size);  // of its magnitudes

  // A row (size,) whose largest magnitude is known to size + kMagnitudeBytes bytes.
  void (*round)(const float* row, std::size_t size, float largest, std::int8_t* bytes);
};

// key and value (B, H, N, D) -> rows of the cache (B, H, N, D + 2); the key is rotated before it is rounded.
class CacheRows {
 public:
  static constexpr const char* kName = "CacheRows";
  // key, smoothing, hadamard, value
  static constexpr std::array kInputs{ort::kFloat, ort::kFloat, ort::kFloat, ort::kFloat};
  static constexpr std::array kOutputs{ort::kInt8, ort::kInt8};

  explicit CacheRows(const KernelAttributes& attributes) : rotation_(attributes) {}
  void compute(KernelCall& call) const;

 private:
  HadamardRotation rotation_;
};

}  // namespace reader_edge
