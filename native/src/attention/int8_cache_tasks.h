// One call of attention over a cache of eight bits, cut into tasks and runs.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention.h"
#include "attention/int8_cache_steps.h"
#include "rounding/hadamard.h"

namespace reader_edge {

// A call's tensors. Rows of a KV head: as SequencePart has them; a task is some of them.
struct Int8CacheCall {
  AttentionShape shape;
  const HadamardRotation& rotation;
  float unit;           // of a score
  const float* query;   // (B, Hq, N, D)
  const std::int8_t *keys, *values;  // (B, H, S, D + 2)
  const float* mask;    // (B, 1, N, M)
  const float* sinks;   // (Hq,), none where null
  float* output;        // (B, N, Hq * D)
  std::vector<SequencePart> parts;

  std::int64_t group_size() const { return shape.query_heads / shape.kv_heads; }
  std::int64_t tasks_of_head() const;  // at most
  std::int64_t rows_of_task() const;   // at most
  std::int64_t num_tasks() const { return shape.batch * shape.kv_heads * tasks_of_head(); }
  std::int64_t most_seen() const;      // columns of a sequence, from its part's begin on
  std::int64_t score_stride() const;
  CacheHead cache_head(const std::int8_t* rows, std::int64_t head) const;
  const float* query_of(std::int64_t head, std::int64_t row) const;
  float* output_of(std::int64_t head, std::int64_t row) const;
  float sink_of_row(std::int64_t head, std::int64_t row) const;  // -infinity without
  const SequencePart& part_of(std::int64_t head) const { return parts[static_cast<std::size_t>(head / shape.kv_heads)]; }
};

constexpr std::int64_t kRunRows = 256;  // runs are multiples of it

// Tasks [first, first + num_tasks), each in runs of run_size rows of the cache, all of them in parallel.
void attend_tasks(const Int8CacheCall& call, std::int64_t first, std::int64_t num_tasks, std::int64_t run_size,
                  const ParallelFor& parallel_for);

}  // namespace reader_edge
