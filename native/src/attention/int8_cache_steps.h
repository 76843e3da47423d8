// The kernels of attention over an int8 KV cache: scores, softmax weights and sums of values of one KV head's query
// rows, each for any run of the cache's rows.
#pragma once

#include <cstdint>

namespace reader_edge {

constexpr std::int64_t kVectorBytes = 64;
constexpr std::int64_t kMostQueryRows = 64;  // that share each read of keys and values
constexpr std::int64_t kMostHeadSize = 576;  // that a tile of keys has room for: a latent of DeepSeek

// Keys or values of one KV head: rows (S, D + 2) of bytes, as CacheRows writes them.
struct CacheHead {
  const std::int8_t* rows;
  std::int64_t head_size;

  std::int64_t row_bytes() const { return head_size + 2; }
  const std::int8_t* row(std::int64_t index) const { return rows + index * row_bytes(); }
};

// A run of the cache's rows; begins at a multiple of 16.
struct Run {
  std::int64_t begin, end;
};

// What the mask adds to query row r is in row r % nodes, (nodes, stride); nothing before `first`.
struct Mask {
  const float* rows;
  std::int64_t nodes, stride, first;
};

// Query rows [first, first + count) of a KV head in bytes, and what becomes of them.
struct QueryRows {
  std::int64_t first, count, row_bytes, stride;  // stride: scores of a row
  std::int8_t* bytes;                            // (count, row_bytes), unused ones zero, none -128
  std::int32_t* byte_sums;                       // (count,)
  float* factors;                                // (count,): of a score
  float* scores;                                 // (count, stride); later weights times their values' magnitudes
};

struct Int8CacheScoreKernels {
  // Scores of a run, -infinity from its end up to a multiple of 16; raises each row's `tops`.
  void (*score_run)(const CacheHead& keys, const Mask& mask, const QueryRows& rows, Run run, float* tops);
};

struct Int8CacheWeightKernels {
  // Scores of a run to exponentials against `tops` times magnitudes; raises `weight_tops`, adds to `totals`.
  void (*weigh_run)(const CacheHead& values, const QueryRows& rows, Run run, const float* tops, float* weight_tops,
                    double* totals);

  // Adds the weights of `count` rows' sinks against `tops` to `totals`, and of more rows, up to a multiple of 16.
  void (*add_sinks)(const float* sinks, const float* tops, std::int64_t count, double* totals);
};

struct Int8CacheSumKernels {
  // Adds weights, as integers against `weight_tops`, times values to sums (count, sum_size(D)).
  void (*sum_run)(const CacheHead& values, const QueryRows& rows, Run run, const float* weight_tops, double* sums);

  // Sums of a row, which lie in an order of their own, to its output (D,).
  void (*finish_row)(std::int64_t head_size, const double* sums, float weight_top, double total, float* output);
};

inline std::int64_t sum_size(std::int64_t head_size) {
  return (head_size + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
}

}  // namespace reader_edge
