// Attention outputs: softmax weights times the values of an int8 KV cache, by dot products of four bytes. Weights are
// integers of two bytes, in steps of their query's largest; values where the upper bytes, or both, are zero for all rows
// of a tile are left out. Four rows of values are transposed into lanes of four bytes once for all query rows.
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

constexpr std::int64_t kGroupQuads = kKeys / 4, kValueGroups = kValueRows / kKeys;  // of 16 rows of values

// Weights of query rows, their upper bytes and their lower ones, and the groups of values where any row's upper byte is
// not zero, then those where only lower ones are not.
struct WeightTile {
  alignas(kVector) std::int8_t bytes[kWeightTile][2][kValueRows];
  std::int64_t groups[2][kValueGroups], counts[2];
};

template <int kRows>
void split_tile(const QueryRows& rows, std::int64_t row, Run run, const float* weight_tops, WeightTile& tile) {
  Floats factors[kRows];
  for (int r = 0; r < kRows; ++r) factors[r] = all(float{kByteWeightSteps}) / all(weight_tops[row + r]);
  const float* const weights = rows.scores + row * rows.stride + run.begin;
  tile.counts[0] = tile.counts[1] = 0;
  for (std::int64_t g = 0; run.begin + g * kKeys < run.end; ++g) {
    Ints largest = all(0);
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) {
      const Ints steps = rounded(load(weights + r * rows.stride + g * kKeys) * factors[r]);
      split_steps(steps, tile.bytes[r][0] + g * kKeys, tile.bytes[r][1] + g * kKeys);
      largest = max(largest, steps);
    }
    const int kind = is_zero(number_of(shifted_right<8>(largest))) ? 1 : 0;
    tile.groups[kind][tile.counts[kind]] = g;
    if (!is_zero(number_of(largest))) ++tile.counts[kind];
  }
}

// Adds the products of a tile's bytes, from plane kFirst on, with the values of its groups of that kind; also values
// alone, where products do not take bytes unsigned.
template <int kFirst, int kRows>
[[gnu::always_inline]] inline void add_groups(const WeightTile& tile, const std::int8_t* values, std::int64_t step,
                                              Ints (&sum)[kRows][2][kValueTile], Ints (&value_sums)[kValueTile]) {
  for (std::int64_t i = 0; i < tile.counts[kFirst]; ++i) {
    const std::int64_t group = tile.groups[kFirst][i];
    const std::int8_t* const weights = tile.bytes[0][0] + group * kKeys;
    const std::int8_t* quad = values + group * kGroupQuads * step;
    for (std::int64_t q = 0; q < kGroupQuads; ++q, quad += step) {
      Bytes value[kValueTile];
#pragma GCC unroll 4
      for (int v = 0; v < kValueTile; ++v) value[v] = load_bytes(quad + v * kVector);
#pragma GCC unroll 3
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int p = kFirst; p < 2; ++p) {
          const Bytes weight = in_all_lanes(weights + (r * 2 + p) * kValueRows + 4 * q);
#pragma GCC unroll 4
          for (int v = 0; v < kValueTile; ++v) {
            if (p == 0) add_dot_products(sum[r][0][v], weight, value[v]);
            if (p == 1) add_full_range_dot_products(sum[r][1][v], weight, value[v]);
          }
        }
      }
      if constexpr (kUnsignedOffset == 0) {
        for (int v = 0; v < kValueTile; ++v) add_dot_products(value_sums[v], all_bytes(1), value[v]);
      }
    }
  }
}

// kRows rows of a tile times kValueTile vectors of quads that are `step` bytes apart.
template <int kRows>
void sum_vectors(const WeightTile& tile, const std::int8_t* values, std::int64_t step, double* sums, std::int64_t stride) {
  Ints sum[kRows][2][kValueTile], value_sums[kValueTile];
#pragma GCC unroll 4
  for (int v = 0; v < kValueTile; ++v) value_sums[v] = all(0);
#pragma GCC unroll 3
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kValueTile; ++v) sum[r][0][v] = sum[r][1][v] = all(0);
  }
  add_groups<0>(tile, values, step, sum, value_sums);
  add_groups<1>(tile, values, step, sum, value_sums);
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

// Transposed values of a run times weights of kRows rows from `row` on.
template <int kRows>
void sum_rows(const std::int8_t* values, const QueryRows& rows, std::int64_t row, Run run, const float* weight_tops,
              double* sums, std::int64_t stride) {
  WeightTile tile;
  split_tile<kRows>(rows, row, run, weight_tops, tile);
  if (tile.counts[0] + tile.counts[1] == 0) return;
  for (std::int64_t d = 0; d < stride; d += kVectorBytes) {
    for (std::int64_t v = 0; v < kVectors; v += kValueTile) {
      double* const sums_of = sums + row * stride + d + v * kKeys;
      sum_vectors<kRows>(tile, values + d * kVectors + v * kVectorBytes, 4 * stride, sums_of, stride);
    }
  }
}

using SumRows = void (*)(const std::int8_t*, const QueryRows&, std::int64_t, Run, const float*, double*, std::int64_t);

template <std::size_t... kBefore>
SumRows sum_rows_of(std::size_t num_rows, std::index_sequence<kBefore...>) {
  static constexpr SumRows kSums[] = {sum_rows<kBefore + 1>...};
  return kSums[num_rows - 1];
}

void sum_run(const CacheHead& values, const QueryRows& rows, Run run, const float* weight_tops, double* sums) {
  static thread_local Scratch kept_values;
  const std::int64_t stride = sum_size(values.head_size);
  std::int8_t* const transposed = kept_values.take<std::int8_t>(kQuads * 4 * stride);
  for (std::int64_t j = run.begin; j < run.end; j += kValueRows) {
    transpose_values(values, j, run.end, transposed);
    const Run part{j, std::min(j + kValueRows, run.end)};
    for (std::int64_t row = 0; row < rows.count; row += kWeightTile) {
      const std::int64_t count = std::min<std::int64_t>(rows.count - row, kWeightTile);
      const auto sum = sum_rows_of(static_cast<std::size_t>(count), std::make_index_sequence<kWeightTile>());
      sum(transposed, rows, row, part, weight_tops, sums, stride);
    }
  }
}

void finish_row(std::int64_t head_size, const double* sums, float weight_top, double total, float* output) {
  const Doubles unit = all(unit_of(weight_top, total));
  for (std::int64_t d = 0; d < head_size; d += kVectorBytes, sums += kVectorBytes) {
    float means[kVectors][kQuarters][4];
    for (std::int64_t i = 0; i < kVectorBytes; i += kDoubles) store_narrowed(means[0][0] + i, load(sums + i) * unit);
    for (std::int64_t i = 0; i < std::min(head_size - d, kVectorBytes); i += 4)
      std::copy_n(means[i / 4 % kVectors][i / kKeys], 4, output + d + i);
  }
}

}  // namespace

extern const Int8CacheSumKernels int8_cache_sum_kernels{sum_run, finish_row};

}  // namespace reader_edge::READER_EDGE_LANES
