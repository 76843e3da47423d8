// `ExactAttention` from scores to outputs: softmax weights times values. Weights are fp32 exponentials; sums over rows
// are float64, whose order vanishes in the rounding to fp32.
#include <algorithm>

#include "kernels/attention/kv_rows.h"
#include "kernels/attention/weighted_sums.h"
#include "lanes/exponential.h"
#include "machine/scratch.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

constexpr std::int64_t kStep = kDoubles;

// Exponentials of scores (count, kQueries) against the rows' largest, widened; adds them to float64 sums by row.
void softmax_weights(std::int64_t count, const float* scores, Floats top, double* weights, double* totals) {
  Doubles low = load(totals), high = load(totals + kDoubles);
  for (std::int64_t j = 0; j < count; ++j) {
    const Floats weight = exp_of(load(scores + j * kQueries) - top);
    const Doubles first = widened_low(weight), second = widened_high(weight);
    low = low + first;
    high = high + second;
    store(weights + j * kQueries, first);
    store(weights + j * kQueries + kDoubles, second);
  }
  store(totals, low);
  store(totals + kDoubles, high);
}

// kVectors * 8 components of kRowBlock rows: adds weights (count, kQueries) times values (count, D) to sums (rows, D).
template <int kVectors>
void add_rows(std::int64_t head_size, std::int64_t count, const double* weights, const float* values,
                  double* sums) {
  Doubles sum[kRowBlock][kVectors];
  for (int r = 0; r < kRowBlock; ++r)
    for (int v = 0; v < kVectors; ++v) sum[r][v] = load(sums + r * head_size + v * kStep);
  for (std::int64_t j = 0; j < count; ++j) {
    Doubles value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = load_widened(values + j * head_size + v * kStep);
    for (int r = 0; r < kRowBlock; ++r) {
      const Doubles weight = all(weights[j * kQueries + r]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(weight, value[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRowBlock; ++r)
    for (int v = 0; v < kVectors; ++v) store(sums + r * head_size + v * kStep, sum[r][v]);
}

void add_tile(std::int64_t head_size, std::int64_t rows, std::int64_t count, const double* weights,
              const float* values, double* sums) {
  for (std::int64_t r = 0; r < rows; r += kRowBlock) {
    std::int64_t d = 0;
    for (; d + kValueTile * kStep <= head_size; d += kValueTile * kStep)
      add_rows<kValueTile>(head_size, count, weights + r, values + d, sums + r * head_size + d);
    for (; d < head_size; d += kStep)
      add_rows<1>(head_size, count, weights + r, values + d, sums + r * head_size + d);
  }
}

// sums (rows, D) over their totals, rounded to fp32.
void divide(std::int64_t head_size, const double* sums, const double* totals, const Block& block) {
  for (std::int64_t r = 0; r < block.count; ++r, sums += head_size) {
    const Doubles total = all(totals[r]);
    for (std::int64_t d = 0; d < head_size; d += kStep) store_narrowed(block.rows[r].output + d, load(sums + d) / total);
  }
}

}  // namespace

void float64_sums(std::int64_t head_size, std::int64_t visible, const KvRows& values, Block* blocks,
                  std::int64_t num_blocks) {
  static thread_local Scratch scratch;
  const std::int64_t row_size = kQueries * head_size, block_size = row_size + kQueries;
  double* const weights = scratch.take<double>(kTile * kQueries + num_blocks * block_size);
  double* const all_sums = weights + kTile * kQueries;
  std::fill_n(all_sums, num_blocks * block_size, 0.0);
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    const Floats sink = exp_of(load(blocks[b].sink) - load(blocks[b].top));
    double* const totals = all_sums + b * block_size + row_size;
    store(totals, widened_low(sink));
    store(totals + kDoubles, widened_high(sink));
  }
  for (std::int64_t j = 0; j < visible; j += kTile) {
    const std::int64_t count = std::min(kTile, visible - j);
    const float* const rows = read_rows(values, head_size, j, count);
    for (std::int64_t b = 0; b < num_blocks; ++b) {
      double* const sums = all_sums + b * block_size;
      softmax_weights(count, blocks[b].scores + j * kQueries, load(blocks[b].top), weights, sums + row_size);
      add_tile(head_size, blocks[b].count, count, weights, rows, sums);
    }
  }
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    const double* const sums = all_sums + b * block_size;
    divide(head_size, sums, sums + row_size, blocks[b]);
  }
}

}  // namespace reader_edge::READER_EDGE_LANES
