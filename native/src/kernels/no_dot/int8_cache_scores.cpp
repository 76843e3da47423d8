// Attention scores, queries times the keys of an int8 KV cache, on processors without dot products of four bytes (AVX2,
// plain NEON). As kernels/attention/int8_cache_scores.cpp, but queries are widened to 16 bits, and keys, once for all
// query rows.
#include <algorithm>
#include <limits>
#include <utility>

#include "attention/int8_cache_steps.h"
#include "kernels/attention/transposed_rows.h"
#include "machine/scratch.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

constexpr int kRowsTogether = 4;  // their sums are in registers
static_assert(kUnsignedOffset == 0, "bytes of keys have their sign");

// Components of 16 keys, a pair to a lane: those at even places of each four, then those at odd ones.
using Pairs = std::int32_t[kMostHeadSize / 2][kKeys];

void widen_keys(const CacheHead& keys, std::int64_t begin, std::int64_t end, Pairs& pairs) {
  alignas(kVector) static thread_local std::int8_t transposed[kMostHeadSize / 4][kVector];
  transpose_keys(keys, begin, end, transposed[0], kVector);
  for (std::int64_t i = 0; i < keys.head_size / 4; ++i) {
    const Bytes four = load_bytes(transposed[i]);
    store(pairs[2 * i], even_words(four));
    store(pairs[2 * i + 1], odd_words(four));
  }
}

// Query rows in the order of `Pairs`, (count, head_size / 2).
const std::int32_t* query_pairs(const QueryRows& rows, std::int64_t head_size) {
  static thread_local Scratch scratch;
  std::int32_t* const pairs = scratch.take<std::int32_t>(rows.count * head_size / 2);
  for (std::int64_t row = 0; row < rows.count; ++row) {
    const std::int8_t* const bytes = rows.bytes + row * rows.row_bytes;
    for (std::int64_t d = 0; d < head_size; d += 2) {
      const std::int64_t first = d / 4 * 4 + d / 2 % 2, second = first + 2;
      pairs[row * head_size / 2 + d / 2] = bytes[second] * 65536 + (bytes[first] & 0xffff);
    }
  }
  return pairs;
}

// Sums of kRows query rows (kRows, num_pairs) times 16 keys.
template <int kRows>
void score_block(const Pairs& keys, const std::int32_t* queries, std::int64_t num_pairs, Ints* scores) {
  Ints sums[kRows];
#pragma GCC unroll 4
  for (auto& sum : sums) sum = all(0);
  for (std::int64_t i = 0; i < num_pairs; ++i) {
    const Ints key = load(keys[i]);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) add_pairs(sums[r], key, all(queries[r * num_pairs + i]));
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) scores[r] = sums[r];
}

using ScoreBlock = void (*)(const Pairs&, const std::int32_t*, std::int64_t, Ints*);

template <std::size_t... kBefore>
ScoreBlock score_block_of(std::size_t num_rows, std::index_sequence<kBefore...>) {
  static constexpr ScoreBlock kBlocks[] = {score_block<kBefore + 1>...};
  return kBlocks[num_rows - 1];
}

void score_run(const CacheHead& keys, const Mask& mask, const QueryRows& rows, Run run, float* tops) {
  alignas(kVector) static thread_local Pairs pairs;
  const std::int64_t num_pairs = keys.head_size / 2;
  const std::int32_t* const queries = query_pairs(rows, keys.head_size);
  Floats largest[kMostQueryRows];
  std::fill_n(largest, rows.count, all(-std::numeric_limits<float>::infinity()));
  for (std::int64_t j = run.begin; j < run.end; j += kKeys) {
    widen_keys(keys, j, run.end, pairs);
    const Floats magnitudes_of = magnitudes(keys, j, run.end);
    for (std::int64_t row = 0; row < rows.count; row += kRowsTogether) {
      Ints sums[kRowsTogether];
      const std::int64_t count = std::min<std::int64_t>(rows.count - row, kRowsTogether);
      const auto score = score_block_of(static_cast<std::size_t>(count), std::make_index_sequence<kRowsTogether>());
      score(pairs, queries + row * num_pairs, num_pairs, sums);
      for (std::int64_t r = row; r < row + count; ++r) {
        const Floats unmasked = number_of(sums[r - row]) * magnitudes_of * all(rows.factors[r]);
        const Floats score_of = masked(mask, rows.first + r, j, run.end, unmasked);
        largest[r] = max(largest[r], score_of);
        store(rows.scores + r * rows.stride + j, score_of);
      }
    }
  }
  for (std::int64_t r = 0; r < rows.count; ++r) tops[r] = std::max(tops[r], largest_of(largest[r]));
}

}  // namespace

extern const Int8CacheScoreKernels int8_cache_score_kernels{score_run};

}  // namespace reader_edge::READER_EDGE_LANES
