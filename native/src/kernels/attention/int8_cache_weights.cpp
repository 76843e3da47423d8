// Softmax over an int8 KV cache: scores to weights, which are not yet divided by their total; the total is an integer.
#include <algorithm>

#include "attention/int8_cache_steps.h"
#include "kernels/attention/cache_magnitudes.h"
#include "kernels/attention/sum_unit.h"
#include "kernels/attention/transposed_rows.h"
#include "kernels/attention/widened_sums.h"
#include "lanes/exponential.h"
#include "machine/scratch.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

constexpr int kTogether = kValueTile > 1 ? 4 : 2;  // vectors whose exponentials are reckoned side by side, as registers hold them
constexpr std::int64_t kTotalRun = 256 * kKeys;  // weights that are summed before they are widened
static_assert(kTotalRun / kKeys * 4194304 <= INT32_MAX, "a run's totals fit into 32 bits");

// What is found in a run of one row.
struct Found {
  Ints total;
  Floats largest;
};

// Scores (kCount, kKeys) to weights times magnitudes.
template <int kCount>
[[gnu::always_inline]] inline void weigh(float* scores, const float* magnitudes_of, Floats top, Found& found) {
  Floats weights[kCount];
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i) weights[i] = load(scores + i * kKeys) - top;
  exp_each(weights);
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i) {
    found.total = found.total + rounded(weights[i] * all(kTotalSteps));
    const Floats product = weights[i] * load(magnitudes_of + i * kKeys);
    store(scores + i * kKeys, product);
    found.largest = max(found.largest, product);
  }
}

void weigh_run(const CacheHead& values, const QueryRows& rows, Run run, const float* tops, float* weight_tops,
               double* totals) {
  static thread_local Scratch kept;
  float* const magnitudes_of = kept.take<float>(kTotalRun);
  for (std::int64_t begin = run.begin; begin < run.end; begin += kTotalRun) {
    const std::int64_t count = std::min(run.end - begin, kTotalRun);
    for (std::int64_t j = 0; j < count; j += kKeys) {
      for (std::int64_t k = 0; k < kKeys; ++k) fetch(values.row(begin + j + k + kFetchedRows) + values.head_size);
      store(magnitudes_of + j, magnitudes(values, begin + j, run.end));
    }
    for (std::int64_t r = 0; r < rows.count; ++r) {
      float* const scores = rows.scores + r * rows.stride + begin;
      const Floats top = all(tops[r]);
      Found found{all(0), all(weight_tops[r])};
      std::int64_t j = 0;
      for (; j + kTogether * kKeys <= count; j += kTogether * kKeys)
        weigh<kTogether>(scores + j, magnitudes_of + j, top, found);
      for (; j < count; j += kKeys) weigh<1>(scores + j, magnitudes_of + j, top, found);
      weight_tops[r] = largest_of(found.largest);
      totals[r] += total_of(widened_low(found.total) + widened_high(found.total));
    }
  }
}

void add_sinks(const float* sinks, const float* tops, std::int64_t count, double* totals) {
  for (std::int64_t r = 0; r < count; r += kLanes) {
    const Floats weight = exp_of(load(sinks + r) - load(tops + r));
    add_widened(rounded(weight * all(kTotalSteps)), totals + r);
  }
}

}  // namespace

extern const Int8CacheWeightKernels int8_cache_weight_kernels{weigh_run, add_sinks};

}  // namespace reader_edge::READER_EDGE_LANES
