// `IntegerAttention` from scores to outputs: softmax weights times values, both rounded to integers, so that a sum over
// the cache's rows has the same bits in any order. Values are in steps of their row's largest, weights in steps of
// their query's largest, with the steps of the values multiplied in.
#include <algorithm>

#include "kernels/attention/kv_rows.h"
#include "kernels/attention/weighted_sums.h"
#include "kernels/attention/widened_sums.h"
#include "lanes/exponential.h"
#include "machine/scratch.h"
#include "shared_constants.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

constexpr float kTotalSteps = 4194304.0f;  // of a weight of one in the divisor
constexpr double kTotalUnit = 1.0 / 4194304.0;
constexpr double kUnit = 1.0 / (double{kWeightSteps} * kValueSteps);
static_assert(kTile * kValueSteps * kWeightSteps <= INT32_MAX && kTile * 4194304 <= INT32_MAX, "sums fit 32 bits");

constexpr std::int64_t kPairs = kTile / 2;

constexpr std::int64_t kStep = kLanes;  // components of a vector

Lanes lanes_left(std::int64_t left) { return first_lanes(static_cast<std::size_t>(left)); }

std::int64_t padded(std::int64_t head_size) { return (head_size + kStep - 1) / kStep * kStep; }

// The largest magnitude of each of `count` rows (count, D), or kSmallest.
void find_magnitudes(std::int64_t head_size, std::int64_t count, const float* values, float* magnitudes) {
  for (std::int64_t j = 0; j < count; ++j) {
    Floats largest = all(kSmallest);
    for (std::int64_t d = 0; d < head_size; d += kStep) {
      fetch(values + (j + kTile) * head_size + d);  // of the next tile
      largest = max(largest, magnitude(load(values + j * head_size + d, lanes_left(head_size - d))));
    }
    magnitudes[j] = largest_of(largest);
  }
}

// A tile of values (count, D) as pairs of integers (kPairs, padded D); what is missing is zero.
void quantize_values(std::int64_t head_size, std::int64_t count, const float* values, const float* magnitudes,
                     std::int32_t* pairs) {
  alignas(kVector) float factors[kTile];
  for (std::int64_t j = 0; j < kTile; j += kStep) store(factors + j, all(float{kValueSteps}) / load(magnitudes + j));
  const std::int64_t stride = padded(head_size);
  for (std::int64_t j = 0; j < count; j += 2) {
    const Floats first = all(factors[j]), second = all(factors[j + 1]);
    const float* const row = values + j * head_size;
    for (std::int64_t d = 0; d < head_size; d += kStep) {
      const Lanes lanes = lanes_left(head_size - d), other = j + 1 < count ? lanes : first_lanes(0);
      const Ints low = rounded(load(row + d, lanes) * first);
      const Ints high = rounded(load(row + head_size + d, other) * second);
      store(pairs + j / 2 * stride + d, paired(low, high));
    }
  }
}

// A tile's scores to exponentials times their values' magnitudes, in place; returns the larger of `top` and them.
Floats weigh(std::int64_t count, const float* magnitudes, const Block& block, float* scores, Floats top,
             double* totals) {
  Ints sums = all(0);
  const Floats top_score = load(block.top);
  for (std::int64_t j = 0; j < count; ++j, scores += kQueries) {
    const Floats weight = exp_of(load(scores) - top_score);
    sums = sums + rounded(weight * all(kTotalSteps));
    const Floats product = weight * all(magnitudes[j]);
    store(scores, product);
    top = max(top, product);
  }
  add_widened(sums, totals);
  return top;
}

// A tile of weights (count, kQueries) as pairs of integers (kPairs, kQueries).
void quantize_weights(std::int64_t count, const float* weights, Floats factor, std::int32_t* pairs) {
  for (std::int64_t j = 0; j < count; j += 2, weights += 2 * kQueries, pairs += kQueries) {
    const Ints low = rounded(load(weights) * factor);
    const Ints high = j + 1 < count ? rounded(load(weights + kQueries) * factor) : all(0);
    store(pairs, paired(low, high));
  }
}

// kVectors * 16 components of kRowBlock rows: adds weights times values, both in pairs, to float64 sums (kQueries, D).
template <int kVectors>
void add_rows(std::int64_t stride, std::int64_t num_pairs, const std::int32_t* weights, const std::int32_t* values,
                  double* sums) {
  Ints sum[kRowBlock][kVectors];
  for (auto& row : sum)
    for (auto& vector : row) vector = all(0);
  for (std::int64_t j = 0; j < num_pairs; ++j) {
    Ints value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = load(values + j * stride + v * kStep);
    for (int r = 0; r < kRowBlock; ++r) {
      const Ints weight = all(weights[j * kQueries + r]);
      for (int v = 0; v < kVectors; ++v) add_pairs(sum[r][v], weight, value[v]);
    }
  }
  for (int r = 0; r < kRowBlock; ++r)
    for (int v = 0; v < kVectors; ++v) add_widened(sum[r][v], sums + r * stride + v * kStep);
}

void add_tile(std::int64_t stride, std::int64_t rows, std::int64_t num_pairs, const std::int32_t* weights,
              const std::int32_t* values, double* sums) {
  for (std::int64_t r = 0; r < rows; r += kRowBlock) {
    std::int64_t d = 0;
    for (; d + kValueTile * kStep <= stride; d += kValueTile * kStep)
      add_rows<kValueTile>(stride, num_pairs, weights + r, values + d, sums + r * stride + d);
    for (; d < stride; d += kStep)
      add_rows<1>(stride, num_pairs, weights + r, values + d, sums + r * stride + d);
  }
}

// Exact sums (rows, D) in the unit of their row, rounded to fp32.
void scale_sums(std::int64_t head_size, const double* sums, Floats top, const double* totals, const Block& block) {
  alignas(kVector) float tops[kQueries];
  store(tops, top);
  for (std::int64_t r = 0; r < block.count; ++r, sums += padded(head_size)) {
    const Doubles unit = all(static_cast<double>(tops[r]) / (totals[r] * kTotalUnit) * kUnit);
    for (std::int64_t d = 0; d < head_size; d += kDoubles) store_narrowed(block.rows[r].output + d, load(sums + d) * unit);
  }
}

}  // namespace

void integer_sums(std::int64_t head_size, std::int64_t visible, const KvRows& values, Block* blocks,
                  std::int64_t num_blocks) {
  static thread_local Scratch integers;
  static thread_local Scratch doubles;
  static thread_local Scratch floats;
  const std::int64_t num_tiles = (visible + kTile - 1) / kTile, stride = padded(head_size);
  const std::int64_t row_size = kQueries * stride, block_size = row_size + kQueries;
  std::int32_t* const value_pairs = integers.take<std::int32_t>(num_tiles * kPairs * stride + kPairs * kQueries);
  std::int32_t* const weight_pairs = value_pairs + num_tiles * kPairs * stride;
  float* const magnitudes = floats.take<float>(num_tiles * kTile);
  double* const all_sums = doubles.take<double>(num_blocks * block_size);
  std::fill_n(all_sums, num_blocks * block_size, 0.0);
  std::fill(magnitudes + visible, magnitudes + num_tiles * kTile, kSmallest);

  Floats tops[kMaxBlocks];
  std::fill_n(tops, num_blocks, all(kSmallest));
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    const Floats sink = exp_of(load(blocks[b].sink) - load(blocks[b].top));
    add_widened(rounded(sink * all(kTotalSteps)), all_sums + b * block_size + row_size);
  }
  for (std::int64_t j = 0; j < visible; j += kTile) {
    const std::int64_t count = std::min(kTile, visible - j);
    const float* const rows = read_rows(values, head_size, j, count);
    find_magnitudes(head_size, count, rows, magnitudes + j);
    quantize_values(head_size, count, rows, magnitudes + j, value_pairs + j / 2 * stride);
    for (std::int64_t b = 0; b < num_blocks; ++b)
      tops[b] = weigh(count, magnitudes + j, blocks[b], blocks[b].scores + j * kQueries, tops[b],
                      all_sums + b * block_size + row_size);
  }
  for (std::int64_t j = 0; j < visible; j += kTile) {
    const std::int64_t count = std::min(kTile, visible - j);
    for (std::int64_t b = 0; b < num_blocks; ++b) {
      const Floats factor = all(float{kWeightSteps}) / tops[b];
      quantize_weights(count, blocks[b].scores + j * kQueries, factor, weight_pairs);
      add_tile(stride, blocks[b].count, (count + 1) / 2, weight_pairs, value_pairs + j / 2 * stride,
               all_sums + b * block_size);
    }
  }
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    const double* const sums = all_sums + b * block_size;
    scale_sums(head_size, sums, tops[b], sums + row_size, blocks[b]);
  }
}

}  // namespace reader_edge::READER_EDGE_LANES
