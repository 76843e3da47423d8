// From attention's scores to its output: softmax weights of the visible rows, times their values. Two definitions.
#pragma once

#include <cstdint>

#include "kv_rows.h"

namespace reader_edge {

constexpr int kLanes = 16;              // query rows of a block: lanes of a vector
constexpr std::int64_t kTile = 64;      // rows of the KV cache: what is made of them stays in a core's first cache
constexpr std::int64_t kMaxBlocks = 4;  // that share each read of keys and values

// At most kLanes query rows.
struct Block {
  std::int64_t first, count;      // in their KV head
  float* query;                   // (D, kLanes)
  float* scores;                  // (M, kLanes), masked
  float* outputs[kLanes];         // each row's, (D,)
  alignas(64) float top[kLanes];  // each row's largest score
};

// values (visible, D); fills the output of every block, whose scores are spoiled.
using WeightedSums = void (*)(std::int64_t head_size, std::int64_t visible, const KvRows& values, Block* blocks,
                              std::int64_t num_blocks);

// fp32 weights, sums in float64.
void float64_sums(std::int64_t head_size, std::int64_t visible, const KvRows& values, Block* blocks,
                  std::int64_t num_blocks);

// Weights and values as integers of 14 and 12 bits, sums exact.
void integer_sums(std::int64_t head_size, std::int64_t visible, const KvRows& values, Block* blocks,
                  std::int64_t num_blocks);

}  // namespace reader_edge
