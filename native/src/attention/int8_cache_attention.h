// The operator `Int8CacheAttention`: nodes of a draft tree attend to rows of an int8 KV cache; every sum is of
// integers.
#pragma once

#include <array>

#include "onnxruntime/kernel.h"
#include "rounding/hadamard.h"

namespace reader_edge {

class Int8CacheAttentionBase {
 public:
  void compute(KernelCall& call) const;

 protected:
  Int8CacheAttentionBase(const KernelAttributes& attributes, bool has_sinks);

 private:
  HadamardRotation rotation_;
  float unit_;  // of a score
  bool has_sinks_;
};

// query (B, Hq, N, D), smoothing (D,), hadamard (b, b), keys and values (B, H, S, D + 2), mask (B, 1, N, M)[, sinks (Hq,)]
// -> (B, N, Hq * D)
template <bool kHasSinks>
class Int8CacheAttention : public Int8CacheAttentionBase {
  static constexpr auto input_types() {
    std::array<ort::ElementType, 6 + kHasSinks> types{ort::kFloat, ort::kFloat, ort::kFloat,
                                                      ort::kInt8,  ort::kInt8,  ort::kFloat};
    types.back() = ort::kFloat;
    return types;
  }

 public:
  static constexpr const char* kName = kHasSinks ? "Int8CacheAttentionSinks" : "Int8CacheAttention";
  static constexpr std::array kInputs = input_types();
  static constexpr std::array kOutputs{ort::kFloat};

  explicit Int8CacheAttention(const KernelAttributes& attributes) : Int8CacheAttentionBase(attributes, kHasSinks) {}
};

}  // namespace reader_edge
