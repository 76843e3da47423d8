// Attention outputs: softmax weights times the values of an int8 KV cache, by dot products of four bytes. Weights are
// integers of two bytes, in steps of their query's largest. Four rows of values are transposed into lanes of four bytes
// once for all query rows.
#include <algorithm>
#include <utility>

#include "attention/int8_cache_steps.h"
#include "kernels/attention/sum_unit.h"
#include "kernels/attention/transposed_rows.h"
#include "kernels/attention/widened_sums.h"
#include "machine/scratch.h"
#include "shared_constants.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

// kRows rows of weights (kRows, 2, kValueRows) times num_quads quads of kValueTile vectors, `step` bytes apart.
template <int kRows>
void sum_vectors(const std::int8_t* weights, const std::int8_t* values, std::int64_t num_quads, std::int64_t step,
                 double* sums, std::int64_t stride) {
  Ints sum[kRows][2][kValueTile], value_sums[kValueTile];
#pragma GCC unroll 4
  for (int v = 0; v < kValueTile; ++v) value_sums[v] = all(0);
#pragma GCC unroll 3
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kValueTile; ++v) sum[r][0][v] = sum[r][1][v] = all(0);
  }
  for (std::int64_t q = 0; q < num_quads; ++q, values += step, weights += 4) {
    Bytes value[kValueTile];
#pragma GCC unroll 4
    for (int v = 0; v < kValueTile; ++v) value[v] = load_bytes(values + v * kVector);
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) {
      const Bytes high = in_all_lanes(weights + r * 2 * kValueRows);
#pragma GCC unroll 4
      for (int v = 0; v < kValueTile; ++v) add_dot_products(sum[r][0][v], high, value[v]);
      const Bytes low = in_all_lanes(weights + (r * 2 + 1) * kValueRows);
#pragma GCC unroll 4
      for (int v = 0; v < kValueTile; ++v) add_full_range_dot_products(sum[r][1][v], low, value[v]);
    }
    if constexpr (kUnsignedOffset == 0) {
      for (int v = 0; v < kValueTile; ++v) add_dot_products(value_sums[v], all_bytes(1), value[v]);
    }
  }
#pragma GCC unroll 3
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kValueTile; ++v) {
      Ints both = shifted_left<8>(sum[r][0][v]) + sum[r][1][v];
      if constexpr (kUnsignedOffset == 0) both = both + shifted_left<7>(value_sums[v]);  // 128 off the low bytes
      add_widened(both, sums + r * stride + v * kKeys);
    }
  }
}

// The same of a block of 64 components.
template <int kRows>
void sum_block(const std::int8_t* weights, const std::int8_t* values, std::int64_t num_quads, std::int64_t step,
               double* sums, std::int64_t stride) {
  for (std::int64_t v = 0; v < kVectors; v += kValueTile) {
    sum_vectors<kRows>(weights, values + v * kVectorBytes, num_quads, step, sums + v * kKeys, stride);
  }
}

using SumBlock = void (*)(const std::int8_t*, const std::int8_t*, std::int64_t, std::int64_t, double*, std::int64_t);

template <std::size_t... kBefore>
SumBlock sum_block_of(std::size_t num_rows, std::index_sequence<kBefore...>) {
  static constexpr SumBlock kBlocks[] = {sum_block<kBefore + 1>...};
  return kBlocks[num_rows - 1];
}

void sum_run(const CacheHead& values, const QueryRows& rows, Run run, const float* weight_tops, double* sums) {
  static thread_local Scratch kept_values;
  static thread_local Scratch kept_weights;
  const std::int64_t stride = sum_size(values.head_size), step = 4 * stride;
  std::int8_t* const transposed = kept_values.take<std::int8_t>(kQuads * step);
  std::int8_t* const weights = kept_weights.take<std::int8_t>(kWeightTile * 2 * kValueRows);
  for (std::int64_t j = run.begin; j < run.end; j += kValueRows) {
    transpose_values(values, j, run.end, transposed);
    const std::int64_t num_quads = (std::min(kValueRows, run.end - j) + 3) / 4;
    for (std::int64_t row = 0; row < rows.count; row += kWeightTile) {
      const std::int64_t count = std::min<std::int64_t>(rows.count - row, kWeightTile);
      for (std::int64_t r = 0; r < count; ++r) {
        const Floats factor = all(float{kByteWeightSteps}) / all(weight_tops[row + r]);
        std::int8_t* const high = weights + r * 2 * kValueRows;
        split_weights(rows.scores + (row + r) * rows.stride + j, 4 * num_quads, factor, high, high + kValueRows);
      }
      const auto sum = sum_block_of(static_cast<std::size_t>(count), std::make_index_sequence<kWeightTile>());
      for (std::int64_t d = 0; d < stride; d += kVectorBytes)
        sum(weights, transposed + d * kVectors, num_quads, step, sums + row * stride + d, stride);
    }
  }
}

void finish_row(std::int64_t head_size, const double* sums, float weight_top, double total, float* output) {
  const double unit = unit_of(weight_top, total);
  for (std::int64_t d = 0; d < head_size; d += 4) {
    const std::int64_t quarter = d % kVectorBytes / kKeys, vector = d / 4 % kVectors;
    const double* const four = sums + d / kVectorBytes * kVectorBytes + vector * kKeys + quarter * 4;
    for (std::int64_t i = 0; i < 4; ++i) output[d + i] = static_cast<float>(four[i] * unit);
  }
}

}  // namespace

extern const Int8CacheSumKernels int8_cache_sum_kernels{sum_run, finish_row};

}  // namespace reader_edge::READER_EDGE_LANES
