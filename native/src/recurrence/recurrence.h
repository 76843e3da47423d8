// Recurrences over draft trees: the gated delta rule, and sums that decay. A state is a matrix for each head, read once and
// written once; it is walked in tiles of columns, which stay in a core's first cache.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "onnxruntime/kernel.h"

namespace reader_edge {

// One node of a head, in a tile of the state's columns. `from` and `to` may be the same.
struct StateStep {
  std::size_t num_keys, num_columns;
  const float* key;    // (num_keys,)
  const float* value;  // (num_columns,)
  float decay, beta;
  const float* from;   // (num_keys, num_columns), rows so far apart
  std::size_t from_stride;
  float* to;           // likewise; null where nobody needs the state
  std::size_t to_stride;
  const float* query;  // (num_keys,); null where nothing is read
  float* output;       // (num_columns,)
};

struct RecurrenceKernels {
  std::size_t tile_columns;
  void (*delta)(const StateStep& step);
  void (*scan)(const StateStep& step);  // has no beta
  void (*exponentials)(const float* numbers, std::size_t count, float* output);
};

template <bool kIsDelta>
class Recurrence {
 public:
  static constexpr const char* kName = kIsDelta ? "TreeDelta" : "TreeScan";
  // query, key (B, N, Hk, Dk), value (B, N, Hv, Dv), log_decay (B, N, Hv), of the delta rule beta (B, N, Hv);
  // parents (B, N), num_kept (B,); state (B, Hv, Dk, Dv), pending (B, P, C); num_pending (B,)
  static constexpr auto kInputs = [] {
    std::array<ort::ElementType, kIsDelta ? 10 : 9> types{};
    for (auto& type : types) type = ort::kFloat;
    types[types.size() - 5] = types[types.size() - 4] = types.back() = ort::kInt64;
    return types;
  }();
  // output (B, N, Hv, Dv), present (B, Hv, Dk, Dv), capsules (B, N, C): [key | value | decay | beta]
  static constexpr std::array kOutputs{ort::kFloat, ort::kFloat, ort::kFloat};

  explicit Recurrence(const KernelAttributes&) {}
  void compute(KernelCall& call) const;
};

}  // namespace reader_edge
