// One call of attention over a tree mask, read straight from an fp32 or fp16 KV cache: its tensors, and how it is run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace reader_edge {

// Rows of a KV cache in fp32 or fp16: one of the two.
struct KvRows {
  const float* floats;
  const std::uint16_t* halves;
};

// One call's tensors, row-major, all fp32 but for keys and values that the cache keeps in fp16.
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
  const float* sinks;  // (Hq,): a score of each head that no value goes with; none where null
  float* output;       // (B, Hq, N, D), or (B, N, Hq * D)
};

// What counts of a sequence. Columns before `begin` are masked for every node, as those before a window are. Counted from
// there, the mask says nothing before column `first`, and nothing is visible from `last` on, to a node from ends[node]
// on. Nodes from `nodes` on repeat the one before them, as padding does, and get its output. Rows of a KV head: its
// group's queries of the others, G * nodes of them.
struct SequencePart {
  std::int64_t begin, first, last, nodes;
  const std::int64_t* ends;

  // What rows [first_row, first_row + count) of a KV head see ends here: nodes of a prompt see none behind themselves.
  std::int64_t last_of(std::int64_t first_row, std::int64_t count) const;
};

// A query row: where it lies, where its output goes, where its node's row begins in its sequence's mask, and the score of
// its head's sink, -infinity without.
struct QueryPlace {
  const float* query;
  float* output;
  std::int32_t mask;
  float sink;
};

struct AttentionKernels {
  // How many of the first `count` numbers come before one that is not zero.
  std::int64_t (*zeros_before)(const float* numbers, std::int64_t count);

  // `count` query rows of a KV head, at most kMaxTaskRows; has_integers: softmax weights and values are.
  void (*attend)(const AttentionShape& shape, const AttentionTensors& tensors, SequencePart part, bool has_integers,
                 std::int64_t head, const QueryPlace* rows, std::int64_t count);
};

constexpr std::int64_t kMaxTaskRows = 64;  // of queries, that share each read of keys and values

// Of a query head's sink; -infinity without.
inline float sink_of(const float* sinks, std::int64_t query_head) {
  return sinks == nullptr ? -std::numeric_limits<float>::infinity() : sinks[query_head];
}

// work(i) for i in [0, count), in any order.
using ParallelFor = std::function<void(std::size_t count, const std::function<void(std::size_t)>& work)>;

// Of every sequence. query: (B, Hq, N, D). Their ends are in memory of the thread's own, until the next call.
std::vector<SequencePart> parts_of_sequences(const AttentionShape& shape, const float* query, const float* mask,
                                             const ParallelFor& parallel_for);

// Tasks are independent: run attend() for every index below num_tasks, on any thread.
std::int64_t num_tasks(const AttentionShape& shape);
void attend(const AttentionShape& shape, const AttentionTensors& tensors, const std::vector<SequencePart>& parts,
            bool has_integers, std::int64_t task);

}  // namespace reader_edge
