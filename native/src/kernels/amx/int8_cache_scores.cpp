// Attention scores over an int8 KV cache by AMX tiles: sixteen query rows times four components of 16 keys a row; as kernels/attention/int8_cache_scores.cpp, which does a few rows sooner.
#include <algorithm>
#include <limits>

#include "attention/int8_cache_steps.h"
#include "kernels.h"
#include "kernels/amx/thresholds.h"
#include "kernels/amx/tile_steps.h"
#include "kernels/attention/transposed_rows.h"

namespace reader_edge {

namespace avx512_vnni {
extern const Int8CacheScoreKernels int8_cache_score_kernels;
}

namespace READER_EDGE_LANES {
namespace {

constexpr std::int64_t kTileQueries = kTileRows, kBothQueries = 2 * kTileQueries;
constexpr std::int64_t kSumStride = kGroups * kVector;
static_assert(kSumStride == kGroupBytes && kUnsignedOffset == 128);

struct Tile {
  alignas(kVector) std::int8_t keys[kMostHeadSize / 4][kGroups][kVector];
  alignas(kVector) std::int32_t sums[2 * kTileRows][kGroups][kKeys];
  Floats magnitudes[kGroups];
};

// Sums of kBothQueries rows from `row` on, of half of them where no more are left; those behind the last mean nothing.
void sum_rows(Tile& tile, std::int64_t head_size, const QueryRows& rows, std::int64_t row) {
  const std::int8_t* const first = rows.bytes + row * rows.row_bytes;
  const bool has_second = rows.count - row > kTileQueries;
  const std::int8_t* const second = has_second ? first + kTileQueries * rows.row_bytes : nullptr;
  zero_tile<0>();
  zero_tile<1>();
  zero_tile<2>();
  zero_tile<3>();
  const auto num_steps = static_cast<std::size_t>((head_size + kVectorBytes - 1) / kVectorBytes);
  add_tile_steps<false>({first, second, static_cast<std::size_t>(rows.row_bytes)}, tile.keys[0][0], num_steps,
                        {tile.keys[0][0], 0, 0});
  store_tile<0>(tile.sums[0][0], kSumStride);
  store_tile<1>(tile.sums[0][1], kSumStride);
  if (!has_second) return;
  store_tile<2>(tile.sums[kTileRows][0], kSumStride);
  store_tile<3>(tile.sums[kTileRows][1], kSumStride);
}

void score_run(const CacheHead& keys, const Mask& mask, const QueryRows& rows, Run run, float* tops) {
  if (!do_tiles_pay(rows, run)) return avx512_vnni::int8_cache_score_kernels.score_run(keys, mask, rows, run, tops);
  static thread_local Tile tile;
  const Tiles tiles(kTileRows, kTileRows);
  Floats largest[kMostQueryRows];
  std::fill_n(largest, rows.count, all(-std::numeric_limits<float>::infinity()));
  for (std::int64_t j = run.begin; j < run.end; j += kTileKeys) {
    for (int g = 0; g < kGroups; ++g) {
      transpose_keys(keys, j + g * kKeys, run.end, tile.keys[0][g], kGroupBytes);
      tile.magnitudes[g] = magnitudes(keys, j + g * kKeys, run.end);
    }
    for (std::int64_t row = 0; row < rows.count; row += kBothQueries) {
      sum_rows(tile, keys.head_size, rows, row);
      for (std::int64_t r = row; r < std::min(row + kBothQueries, rows.count); ++r) {
        const Floats factor = all(rows.factors[r]);
        const Ints correction = all(kUnsignedOffset * rows.byte_sums[r]);  // what raised keys added
        for (int g = 0; g < kGroups && j + g * kKeys < run.end; ++g) {
          const std::int64_t begin = j + g * kKeys;
          const Ints sum = load(tile.sums[r - row][g]) - correction;
          const Floats score = number_of(sum) * tile.magnitudes[g] * factor;
          const Floats score_of = masked(mask, rows.first + r, begin, run.end, score);
          largest[r] = max(largest[r], score_of);
          store(rows.scores + r * rows.stride + begin, score_of);
        }
      }
    }
  }
  for (std::int64_t r = 0; r < rows.count; ++r) tops[r] = std::max(tops[r], largest_of(largest[r]));
}

}  // namespace

extern const Int8CacheScoreKernels int8_cache_score_kernels{score_run};

}  // namespace READER_EDGE_LANES
}  // namespace reader_edge
