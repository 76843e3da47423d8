// From attention's scores to its output: softmax weights of the visible rows, times their values, in two ways.
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {

constexpr std::int64_t kQueries = kLanes;  // query rows of a block: lanes of a vector
constexpr std::int64_t kTile = 64;         // rows of the KV cache: what is made of them stays in a core's first cache
constexpr std::int64_t kMaxBlocks = kMaxTaskRows / kQueries;
constexpr std::int64_t kRowBlock = 4;      // query rows whose sums are in registers together

// At most kQueries query rows.
struct Block {
  const QueryPlace* rows;
  std::int64_t count;
  float* query;                          // (D, kQueries)
  float* scores;                         // (M, kQueries), masked
  alignas(kVector) float top[kQueries];   // each row's largest score, its sink's among them
  alignas(kVector) float sink[kQueries];  // a score without a value; -infinity counts for nothing
};

// Both: values (visible, D); fill the output of every block, whose scores are spoiled.

// fp32 weights, sums in float64.
void float64_sums(std::int64_t head_size, std::int64_t visible, const KvRows& values, Block* blocks,
                  std::int64_t num_blocks);

// Weights and values as integers of 14 and 12 bits, sums exact.
void integer_sums(std::int64_t head_size, std::int64_t visible, const KvRows& values, Block* blocks,
                  std::int64_t num_blocks);

}  // namespace reader_edge::READER_EDGE_LANES
