// Attention outputs, softmax weights times the values of an int8 KV cache, on processors without dot products of four
// bytes (AVX2, plain NEON). As kernels/attention/int8_cache_sums.cpp, but values are widened to 16 bits once for all
// query rows, and a weight is one number of 16 bits.
#include <algorithm>
#include <cstring>
#include <utility>

#include "attention/int8_cache_steps.h"
#include "kernels/attention/sum_unit.h"
#include "kernels/attention/transposed_rows.h"
#include "kernels/attention/widened_sums.h"
#include "machine/scratch.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

constexpr std::int64_t kPairRows = 128;  // of the cache: widened, they stay in a core's first cache
constexpr std::int64_t kPairs = kPairRows / 2;
constexpr int kRowsTogether = 4;  // their sums are in registers
static_assert(kPairRows * (kSteps + 1) * kByteWeightSteps <= INT32_MAX, "a tile's sums fit into 32 bits");

Ints widened_part(const std::int8_t* bytes, std::int64_t count) {
  if (count >= kKeys) return widened(bytes);
  std::int8_t kept[kKeys] = {};
  std::memcpy(kept, bytes, static_cast<std::size_t>(count));
  return widened(kept);
}

// Values [begin, begin + kPairRows), from `end` on zero, to pairs of rows (kPairs, stride).
void pair_values(const CacheHead& values, std::int64_t begin, std::int64_t end, std::int64_t stride, std::int32_t* pairs) {
  for (std::int64_t j = begin; j < std::min(begin + kPairRows, end); j += 2, pairs += stride) {
    const std::int8_t *const first = values.row(j), *const second = values.row(j + 1);
    for (std::int64_t d = 0; d < values.head_size; d += kKeys) {
      if (d % kVectorBytes == 0) {
        fetch(values.row(j + kFetchedRows) + d);
        fetch(values.row(j + kFetchedRows + 1) + d);
      }
      const std::int64_t count = values.head_size - d;
      store(pairs + d, paired(widened_part(first + d, count), j + 1 < end ? widened_part(second + d, count) : all(0)));
    }
  }
}

// Weights (count,), a multiple of 16, to numbers of 16 bits.
void round_weights(const float* weights, std::int64_t count, Floats factor, std::int16_t* words) {
  alignas(kVector) std::int32_t steps[kKeys];
  for (std::int64_t j = 0; j < count; j += kKeys) {
    store(steps, rounded(load(weights + j) * factor));
    for (std::int64_t i = 0; i < kKeys; ++i) words[j + i] = static_cast<std::int16_t>(steps[i]);
  }
}

std::int32_t pair_at(const std::int16_t* words) {
  std::int32_t pair;
  std::memcpy(&pair, words, sizeof pair);
  return pair;
}

// kRows rows of weights (kRows, kPairRows) times num_pairs pairs of values, of which rows are `stride` apart: adds to 16
// sums of each row.
template <int kRows>
void sum_vector(const std::int16_t* weights, const std::int32_t* values, std::int64_t num_pairs, std::int64_t stride,
                double* sums) {
  Ints sum[kRows];
#pragma GCC unroll 4
  for (auto& row : sum) row = all(0);
  for (std::int64_t i = 0; i < num_pairs; ++i) {
    const Ints value = load(values + i * stride);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) add_pairs(sum[r], value, all(pair_at(weights + r * kPairRows + 2 * i)));
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) add_widened(sum[r], sums + r * stride);
}

using SumVector = void (*)(const std::int16_t*, const std::int32_t*, std::int64_t, std::int64_t, double*);

template <std::size_t... kBefore>
SumVector sum_vector_of(std::size_t num_rows, std::index_sequence<kBefore...>) {
  static constexpr SumVector kVectorsOf[] = {sum_vector<kBefore + 1>...};
  return kVectorsOf[num_rows - 1];
}

void sum_run(const CacheHead& values, const QueryRows& rows, Run run, const float* weight_tops, double* sums) {
  static thread_local Scratch kept_pairs;
  alignas(kVector) static thread_local std::int16_t weights[kRowsTogether * kPairRows];
  const std::int64_t stride = sum_size(values.head_size);
  std::int32_t* const pairs = kept_pairs.take<std::int32_t>(kPairs * stride);
  for (std::int64_t j = run.begin; j < run.end; j += kPairRows) {
    pair_values(values, j, run.end, stride, pairs);
    const std::int64_t num_rows = (std::min(kPairRows, run.end - j) + kKeys - 1) / kKeys * kKeys;
    const std::int64_t num_pairs = (std::min(kPairRows, run.end - j) + 1) / 2;
    for (std::int64_t row = 0; row < rows.count; row += kRowsTogether) {
      const std::int64_t count = std::min<std::int64_t>(rows.count - row, kRowsTogether);
      for (std::int64_t r = 0; r < count; ++r) {
        const Floats factor = all(float{kByteWeightSteps}) / all(weight_tops[row + r]);
        round_weights(rows.scores + (row + r) * rows.stride + j, num_rows, factor, weights + r * kPairRows);
      }
      const auto sum = sum_vector_of(static_cast<std::size_t>(count), std::make_index_sequence<kRowsTogether>());
      for (std::int64_t d = 0; d < values.head_size; d += kKeys)
        sum(weights, pairs + d, num_pairs, stride, sums + row * stride + d);
    }
  }
}

void finish_row(std::int64_t head_size, const double* sums, float weight_top, double total, float* output) {
  const double unit = unit_of(weight_top, total);
  for (std::int64_t d = 0; d < head_size; ++d) output[d] = static_cast<float>(sums[d] * unit);
}

}  // namespace

extern const Int8CacheSumKernels int8_cache_sum_kernels{sum_run, finish_row};

}  // namespace reader_edge::READER_EDGE_LANES
