// Attention over a tree mask, read straight from the KV buffers: the bits of the `exact` lowering.
#pragma once

#include <cstdint>
#include <vector>

namespace reader_edge {

// Rows of a KV cache in fp32 or fp16: one of the two.
struct KvRows {
  const float* floats;
  const std::uint16_t* halves;
};

// One call's tensors, row-major, all fp32 but for keys and values that the cache keeps in fp16. Rows of a KV head: its
// group's queries, G * N of them.
struct AttentionShape {
  std::int64_t batch, query_heads, kv_heads, nodes, visible, capacity, head_size;
  float scale;
  bool has_merged_heads;  // in the output
};

struct AttentionTensors {
  const float* query;  // (B, Hq, N, D)
  KvRows keys;         // (B, H, S, D), S = capacity
  KvRows values;       // (B, H, S, D)
  const float* mask;   // (B, 1, N, M), added to the scores
  float* output;       // (B, Hq, N, D), or (B, N, Hq * D)
};

// What the mask says of a sequence: nothing before `first`, nothing visible from `last` on.
struct MaskedColumns {
  std::int64_t first, last;
};

struct AttentionKernels {
  // How many of the first `count` numbers come before one that is not zero.
  std::int64_t (*zeros_before)(const float* numbers, std::int64_t count);

  // One KV head's query rows [first, first + count), at most kMaxTaskRows; has_integers: softmax weights and values are.
  void (*attend)(const AttentionShape& shape, const AttentionTensors& tensors, MaskedColumns columns, bool has_integers,
                 std::int64_t head, std::int64_t first, std::int64_t count);
};

constexpr std::int64_t kMaxTaskRows = 64;  // of queries, that share each read of keys and values

// Of every sequence.
std::vector<MaskedColumns> masked_columns(const AttentionShape& shape, const float* mask);

// Tasks are independent: run attend() for every index below num_tasks, on any thread.
std::int64_t num_tasks(const AttentionShape& shape);
void attend(const AttentionShape& shape, const AttentionTensors& tensors, const std::vector<MaskedColumns>& columns,
            bool has_integers, std::int64_t task);

inline std::int64_t rows_of_head(const AttentionShape& shape) {
  return shape.query_heads / shape.kv_heads * shape.nodes;
}

}  // namespace reader_edge
