// Attention scores: queries times the keys of an int8 KV cache, by dot products of four bytes. The lanes of a vector
// are 16 keys, transposed once for all query rows: four components of each key to a lane, times four of a query in
// every lane. Sums of 32-bit integers are exact in any order.
#include <algorithm>
#include <limits>
#include <utility>

#include "attention/int8_cache_steps.h"
#include "kernels/attention/transposed_rows.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

// Keys [begin, begin + kTileKeys) of a run that ends at `end`.
struct Tile {
  alignas(kVector) std::int8_t keys[kGroups][kMostHeadSize / 4][kVector];
  Floats magnitudes[kGroups];
  std::int64_t begin, end;
  bool is_bare;  // no mask, and no end within
};

void fill_tile(const CacheHead& keys, const Mask& mask, std::int64_t begin, std::int64_t end, Tile& tile) {
  for (int g = 0; g < kGroups; ++g) {
    transpose_keys(keys, begin + g * kKeys, end, tile.keys[g][0], kVector);
    tile.magnitudes[g] = magnitudes(keys, begin + g * kKeys, end);
  }
  tile.begin = begin;
  tile.end = end;
  tile.is_bare = begin + kTileKeys <= std::min(end, mask.first);
}

// Scores of kRows rows from `row` on against a tile; raises the largest of each lane.
template <int kRows>
void score_block(const Tile& tile, std::int64_t head_size, const Mask& mask, const QueryRows& rows, std::int64_t row,
                 Floats* largest) {
  Ints sums[kRows][kGroups];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = all(-kUnsignedOffset * rows.byte_sums[row + r]);
  const std::int8_t* const bytes = rows.bytes + row * rows.row_bytes;
  for (std::int64_t i = 0; i < head_size / 4; ++i) {
    const Bytes first = load_bytes(tile.keys[0][i]), second = load_bytes(tile.keys[1][i]);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Bytes query = in_all_lanes(bytes + r * rows.row_bytes + 4 * i);
      add_full_range_dot_products(sums[r][0], first, query);
      add_full_range_dot_products(sums[r][1], second, query);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const Floats factor = all(rows.factors[row + r]);
#pragma GCC unroll 2
    for (int g = 0; g < kGroups; ++g) {
      const std::int64_t begin = tile.begin + g * kKeys;
      if (!tile.is_bare && begin >= tile.end) break;
      Floats score = number_of(sums[r][g]) * tile.magnitudes[g] * factor;
      if (!tile.is_bare) score = masked(mask, rows.first + row + r, begin, tile.end, score);
      largest[row + r] = max(largest[row + r], score);
      store(rows.scores + (row + r) * rows.stride + begin, score);
    }
  }
}

using ScoreBlock = void (*)(const Tile&, std::int64_t, const Mask&, const QueryRows&, std::int64_t, Floats*);

template <std::size_t... kBefore>
ScoreBlock score_block_of(std::size_t num_rows, std::index_sequence<kBefore...>) {
  static constexpr ScoreBlock kBlocks[] = {score_block<kBefore + 1>...};
  return kBlocks[num_rows - 1];
}

void score_run(const CacheHead& keys, const Mask& mask, const QueryRows& rows, Run run, float* tops) {
  static thread_local Tile tile;
  Floats largest[kMostQueryRows];
  std::fill_n(largest, rows.count, all(-std::numeric_limits<float>::infinity()));
  for (std::int64_t j = run.begin; j < run.end; j += kTileKeys) {
    fill_tile(keys, mask, j, run.end, tile);
    for (std::int64_t row = 0; row < rows.count; row += kScoreTile) {
      const std::int64_t count = std::min<std::int64_t>(rows.count - row, kScoreTile);
      const auto score = score_block_of(static_cast<std::size_t>(count), std::make_index_sequence<kScoreTile>());
      score(tile, keys.head_size, mask, rows, row, largest);
    }
  }
  for (std::int64_t r = 0; r < rows.count; ++r) tops[r] = std::max(tops[r], largest_of(largest[r]));
}

}  // namespace

extern const Int8CacheScoreKernels int8_cache_score_kernels{score_run};

}  // namespace reader_edge::READER_EDGE_LANES
