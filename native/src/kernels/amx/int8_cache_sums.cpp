// Softmax weights times the values of an int8 KV cache by AMX tiles: eight rows of weights in two planes each, times 64
// rows of values; as kernels/attention/int8_cache_sums.cpp, which does a few rows sooner.
#include <algorithm>

#include "attention/int8_cache_steps.h"
#include "kernels.h"
#include "kernels/amx/thresholds.h"
#include "kernels/attention/transposed_rows.h"
#include "kernels/attention/widened_sums.h"
#include "lanes/lanes.h"
#include "machine/scratch.h"
#include "shared_constants.h"

namespace reader_edge {

namespace avx512_vnni {
extern const Int8CacheSumKernels int8_cache_sum_kernels;
}

namespace READER_EDGE_LANES {
namespace {

constexpr std::int64_t kTileQueries = kTileRows / 2;
constexpr std::int64_t kStepRows = kTileBytes, kStepQuads = kStepRows / 4;  // of values
static_assert(kVectors == 4 && kUnsignedOffset == 128);

struct Sums {
  alignas(kVector) std::int32_t rows[kTileRows][kVectors][kKeys];
};

// A tile of weights (kTileRows, kValueRows) times num_steps tiles of values of a block of 64 components, whose quads are
// `step` bytes apart.
void sum_block(const std::int8_t* weights, const std::int8_t* values, std::int64_t num_steps, std::int64_t step,
               Sums& sums) {
  const auto stride = static_cast<std::size_t>(step);
  zero_tile<0>();
  zero_tile<1>();
  zero_tile<2>();
  zero_tile<3>();
  for (std::int64_t s = 0; s < num_steps; ++s, weights += kStepRows, values += kStepQuads * step) {
    load_tile<4>(weights, kValueRows);
    load_tile<6>(values, stride);
    add_tile_products<true, 0, 4, 6>();
    load_tile<7>(values + kVector, stride);
    add_tile_products<true, 1, 4, 7>();
    load_tile<6>(values + 2 * kVector, stride);
    add_tile_products<true, 2, 4, 6>();
    load_tile<7>(values + 3 * kVector, stride);
    add_tile_products<true, 3, 4, 7>();
  }
  store_tile<0>(sums.rows[0][0], sizeof sums.rows[0]);
  store_tile<1>(sums.rows[0][1], sizeof sums.rows[0]);
  store_tile<2>(sums.rows[0][2], sizeof sums.rows[0]);
  store_tile<3>(sums.rows[0][3], sizeof sums.rows[0]);
}

void add_sums(const Sums& sums, std::int64_t count, double* totals, std::int64_t stride) {
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t v = 0; v < kVectors; ++v) {
      const Ints both = shifted_left<8>(load(sums.rows[2 * r][v])) + load(sums.rows[2 * r + 1][v]);
      add_widened(both, totals + r * stride + v * kKeys);
    }
  }
}

void sum_run(const CacheHead& values, const QueryRows& rows, Run run, const float* weight_tops, double* sums) {
  if (!do_tiles_pay(rows, run)) return avx512_vnni::int8_cache_sum_kernels.sum_run(values, rows, run, weight_tops, sums);
  static thread_local Scratch kept_values;
  static thread_local Scratch kept_weights;
  static thread_local Sums of_block;
  const Tiles tiles(kTileRows, kTileRows);
  const std::int64_t stride = sum_size(values.head_size), step = 4 * stride;
  std::int8_t* const transposed = kept_values.take<std::int8_t>(kQuads * step);
  std::int8_t* const weights = kept_weights.take<std::int8_t>(kTileRows * kValueRows);
  for (std::int64_t j = run.begin; j < run.end; j += kValueRows) {
    transpose_values(values, j, run.end, transposed);
    const std::int64_t num_rows = (std::min(kValueRows, run.end - j) + kKeys - 1) / kKeys * kKeys;
    const std::int64_t num_steps = (num_rows + kStepRows - 1) / kStepRows;
    for (std::int64_t row = 0; row < rows.count; row += kTileQueries) {
      const std::int64_t count = std::min<std::int64_t>(rows.count - row, kTileQueries);
      std::fill_n(weights, count * 2 * kValueRows, std::int8_t{0});  // values behind the last are whatever they are
      for (std::int64_t r = 0; r < count; ++r) {
        const Floats factor = all(float{kByteWeightSteps}) / all(weight_tops[row + r]);
        std::int8_t* const high = weights + r * 2 * kValueRows;
        const float* const weights_of = rows.scores + (row + r) * rows.stride + j;
        for (std::int64_t k = 0; k < num_rows; k += kKeys)
          split_steps(rounded(load(weights_of + k) * factor), high + k, high + kValueRows + k);
      }
      for (std::int64_t d = 0; d < stride; d += kVectorBytes) {
        sum_block(weights, transposed + d * kVectors, num_steps, step, of_block);
        add_sums(of_block, count, sums + row * stride + d, stride);
      }
    }
  }
}

void finish_row(std::int64_t head_size, const double* sums, float weight_top, double total, float* output) {
  avx512_vnni::int8_cache_sum_kernels.finish_row(head_size, sums, weight_top, total, output);
}

}  // namespace

extern const Int8CacheSumKernels int8_cache_sum_kernels{sum_run, finish_row};

}  // namespace READER_EDGE_LANES
}  // namespace reader_edge
