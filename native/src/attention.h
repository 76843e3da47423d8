// Attention over a tree mask, read straight from the KV buffers: the bits of the `exact` lowering.
#pragma once

#include <cstdint>
#include <vector>

#include "kv_rows.h"
#include "weighted_sums.h"

namespace reader_edge {

// One call's tensors, row-major, all fp32 but for keys and values that the cache keeps in fp16. Rows of a KV head: its group's queries, G * N of them.
struct AttentionShape {
  std::int64_t batch, query_heads, kv_heads, nodes, visible, capacity, head_size;
  float scale;
  bool has_merged_heads;  // in the output
};

struct AttentionTensors {
  const float* query;   // (B, Hq, N, D)
  KvRows keys;          // (B, H, S, D), S = capacity
  KvRows values;        // (B, H, S, D)
  const float* mask;    // (B, 1, N, M), added to the scores
  float* output;        // (B, Hq, N, D), or (B, N, Hq * D)
};

// What the mask says of a sequence: nothing before `first`, nothing visible from `last` on.
struct MaskedColumns {
  std::int64_t first, last;
};

std::vector<MaskedColumns> masked_columns(const AttentionShape& shape, const float* mask);

// Tasks are independent: run attend() for every index below num_tasks, on any thread. columns: of every sequence.
std::int64_t num_tasks(const AttentionShape& shape);
void attend(const AttentionShape& shape, const AttentionTensors& tensors, const std::vector<MaskedColumns>& columns,
            WeightedSums weighted_sums, std::int64_t task);

}  // namespace reader_edge
