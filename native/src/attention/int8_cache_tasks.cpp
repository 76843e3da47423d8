// Sums of integers have no order, so a long cache is cut into runs of rows, which threads share. That takes three
// steps, since a run needs the largest score, and then the largest weight, of all runs.
#include "attention/int8_cache_tasks.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "cache/cache_rows.h"
#include "kernels.h"
#include "machine/scratch.h"
#include "shared_constants.h"

namespace reader_edge {
namespace {

constexpr std::int64_t kVectorFloats = 16;
constexpr std::int64_t kRowsBehind = 16;  // that kernels may read behind the last query row, whatever they hold

std::int64_t divided_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

// Of each query row: the largest score, the largest weight and the sum of weights.
struct Found {
  float tops[kMostQueryRows], weight_tops[kMostQueryRows];
  double totals[kMostQueryRows];

  void clear() {
    std::fill_n(tops, kMostQueryRows, -std::numeric_limits<float>::infinity());
    std::fill_n(weight_tops, kMostQueryRows, kSmallest);
    std::fill_n(totals, kMostQueryRows, 0.0);
  }

  void add(const Found& other, std::int64_t count) {
    for (std::int64_t row = 0; row < count; ++row) {
      tops[row] = std::max(tops[row], other.tops[row]);
      weight_tops[row] = std::max(weight_tops[row], other.weight_tops[row]);
      totals[row] += other.totals[row];
    }
  }
};

struct Task {
  std::int64_t head, num_visible;
  Mask mask;
  QueryRows rows;
  std::int32_t byte_sums[kMostQueryRows];
  float factors[kMostQueryRows];
  float sinks[kMostQueryRows];
  Found found;
};

// A run of a task: what is found in it alone, and its sums (rows, sum_size(D)).
struct Part {
  Found found;
  double* sums;
};

// Rotates and rounds a query to row `row` of a task.
void round_query(const Int8CacheCall& call, const float* query, const QueryRows& rows, std::int64_t row) {
  static thread_local Scratch scratch;
  float* const rotated = scratch.take<float>(rows.row_bytes + kVectorFloats);
  const float largest = call.rotation.apply(query, rotated);
  std::int8_t* const bytes = rows.bytes + row * rows.row_bytes;
  const auto size = static_cast<std::size_t>(call.shape.head_size), stride = static_cast<std::size_t>(rows.row_bytes);
  rows.factors[row] = kernels().rounding.round(rotated, largest, size, bytes, stride) * call.unit;
  rows.byte_sums[row] = std::accumulate(bytes, bytes + size, std::int32_t{0});
}

// Some tasks of a call, with memory that a thread keeps from call to call.
class Tasks {
 public:
  Tasks(const Int8CacheCall& call, std::int64_t first, std::int64_t num_tasks, std::int64_t run_size)
      : call_(call), run_size_(run_size), num_runs_(divided_up(call.most_seen(), run_size)) {
    static thread_local Scratch kept_bytes;
    static thread_local Scratch kept_scores;
    static thread_local Scratch kept_sums;
    static thread_local std::vector<Task> kept_tasks;
    static thread_local std::vector<Part> kept_parts;
    const std::int64_t rows = call.rows_of_task(), num_parts = num_tasks * num_runs_;
    const std::int64_t num_scores = rows * call.score_stride(), row_sums = sum_size(call.shape.head_size);
    float* const scores = kept_scores.take<float>(num_tasks * num_scores);
    std::int8_t* const bytes = kept_bytes.take<std::int8_t>((num_tasks * rows + kRowsBehind) * row_sums);
    double* const sums = kept_sums.take<double>(num_parts * rows * row_sums);
    std::fill_n(sums, num_parts * rows * row_sums, 0.0);
    kept_tasks.resize(std::max(kept_tasks.size(), static_cast<std::size_t>(num_tasks)));
    kept_parts.resize(std::max(kept_parts.size(), static_cast<std::size_t>(num_parts)));
    tasks_ = kept_tasks.data();
    parts_ = kept_parts.data();
    num_tasks_ = num_tasks;
    for (std::int64_t t = 0; t < num_tasks; ++t)
      prepare(first + t, scores + t * num_scores, bytes + t * rows * row_sums, tasks_[t]);
    for (std::int64_t i = 0; i < num_parts; ++i) {
      parts_[i].found.clear();
      parts_[i].sums = sums + i * rows * row_sums;
    }
  }

  std::size_t num_parts() const { return static_cast<std::size_t>(num_tasks_ * num_runs_); }

  void score(std::size_t index) {
    Task& task = task_of(index);
    const CacheHead keys = call_.cache_head(call_.keys, task.head);
    kernels().int8_cache_scores.score_run(keys, task.mask, task.rows, run_of(index), parts_[index].found.tops);
  }

  void weigh(std::size_t index) {
    Task& task = task_of(index);
    Found& found = parts_[index].found;
    const CacheHead values = call_.cache_head(call_.values, task.head);
    kernels().int8_cache_weights.weigh_run(values, task.rows, run_of(index), task.found.tops, found.weight_tops, found.totals);
  }

  void sum(std::size_t index) {
    Task& task = task_of(index);
    const CacheHead values = call_.cache_head(call_.values, task.head);
    kernels().int8_cache_sums.sum_run(values, task.rows, run_of(index), task.found.weight_tops, parts_[index].sums);
  }

  // What was found in the runs of each task and in sinks, all together.
  void gather() {
    for (std::int64_t t = 0; t < num_tasks_; ++t) {
      Task& task = tasks_[t];
      task.found.clear();
      if (call_.sinks != nullptr) std::copy_n(task.sinks, kMostQueryRows, task.found.tops);
      for (std::int64_t i = t * num_runs_; i < (t + 1) * num_runs_; ++i) task.found.add(parts_[i].found, task.rows.count);
      if (call_.sinks != nullptr) {
        kernels().int8_cache_weights.add_sinks(task.sinks, task.found.tops, task.rows.count, task.found.totals);
      }
    }
  }

  void finish() {
    for (std::int64_t t = 0; t < num_tasks_; ++t) {
      const Task& task = tasks_[t];
      double* const sums = parts_[t * num_runs_].sums;
      const std::int64_t row_sums = sum_size(call_.shape.head_size), size = task.rows.count * row_sums;
      for (std::int64_t run = 1; run < num_runs_; ++run) {
        const double* const others = parts_[t * num_runs_ + run].sums;
        for (std::int64_t i = 0; i < size; ++i) sums[i] += others[i];
      }
      for (std::int64_t row = 0; row < task.rows.count; ++row) {
        float* const output = call_.output_of(task.head, task.rows.first + row);
        const float weight_top = task.found.weight_tops[row];
        kernels().int8_cache_sums.finish_row(call_.shape.head_size, sums + row * row_sums, weight_top,
                                             task.found.totals[row], output);
        repeat(task.head, task.rows.first + row, output);
      }
    }
  }

 private:
  // Copies the output of a sequence's last node to those that repeat it.
  void repeat(std::int64_t head, std::int64_t row, float* output) const {
    const AttentionShape& s = call_.shape;
    const std::int64_t num_nodes = call_.part_of(head).nodes;
    if (row % num_nodes != num_nodes - 1) return;
    for (std::int64_t copy = 1; copy <= s.nodes - num_nodes; ++copy) {
      std::copy_n(output, s.head_size, output + copy * s.query_heads * s.head_size);
    }
  }

  void prepare(std::int64_t index, float* scores, std::int8_t* bytes, Task& task) {
    const AttentionShape& s = call_.shape;
    task.head = index / call_.tasks_of_head();
    const std::int64_t sequence = task.head / s.kv_heads, row_bytes = sum_size(s.head_size);
    const SequencePart& part = call_.part_of(task.head);
    const std::int64_t num_rows = call_.group_size() * part.nodes;
    const std::int64_t first = std::min(index % call_.tasks_of_head() * call_.rows_of_task(), num_rows);
    const std::int64_t count = std::min(call_.rows_of_task(), num_rows - first);
    task.num_visible = part.last_of(first, count);
    task.mask = {call_.mask + sequence * s.nodes * s.visible + part.begin, part.nodes, s.visible, part.first};
    task.rows = {first, count, row_bytes, call_.score_stride(), bytes, task.byte_sums, task.factors, scores};
    std::fill_n(task.sinks, kMostQueryRows, 0.0f);
    for (std::int64_t row = 0; row < count; ++row) {
      round_query(call_, call_.query_of(task.head, first + row), task.rows, row);
      task.sinks[row] = call_.sink_of_row(task.head, first + row);
    }
  }

  Task& task_of(std::size_t index) { return tasks_[static_cast<std::int64_t>(index) / num_runs_]; }

  Run run_of(std::size_t index) {
    const std::int64_t begin = static_cast<std::int64_t>(index) % num_runs_ * run_size_;
    return {begin, std::min(begin + run_size_, task_of(index).num_visible)};  // empty where all of it is masked
  }

  const Int8CacheCall& call_;
  Task* tasks_;
  Part* parts_;
  std::int64_t num_tasks_, run_size_, num_runs_;
};

}  // namespace

std::int64_t Int8CacheCall::tasks_of_head() const { return divided_up(group_size() * shape.nodes, kMostQueryRows); }
std::int64_t Int8CacheCall::rows_of_task() const { return divided_up(group_size() * shape.nodes, tasks_of_head()); }

std::int64_t Int8CacheCall::most_seen() const {
  std::int64_t most = 0;
  for (const SequencePart& part : parts) most = std::max(most, part.last);
  return most;
}

std::int64_t Int8CacheCall::score_stride() const {
  return (divided_up(most_seen(), kVectorFloats) + 1) * kVectorFloats;  // no multiple of pages: rows would evict rows
}

CacheHead Int8CacheCall::cache_head(const std::int8_t* rows, std::int64_t head) const {
  return {rows + (head * shape.capacity + part_of(head).begin) * (shape.head_size + kMagnitudeBytes), shape.head_size};
}

const float* Int8CacheCall::query_of(std::int64_t head, std::int64_t row) const {
  const std::int64_t num_nodes = part_of(head).nodes, query_head = head * group_size() + row / num_nodes;
  return query + (query_head * shape.nodes + row % num_nodes) * shape.head_size;
}

float* Int8CacheCall::output_of(std::int64_t head, std::int64_t row) const {
  const std::int64_t num_nodes = part_of(head).nodes;
  const std::int64_t query_head = head % shape.kv_heads * group_size() + row / num_nodes;
  const std::int64_t node = head / shape.kv_heads * shape.nodes + row % num_nodes;
  return output + (node * shape.query_heads + query_head) * shape.head_size;
}

float Int8CacheCall::sink_of_row(std::int64_t head, std::int64_t row) const {
  return sink_of(sinks, head % shape.kv_heads * group_size() + row / part_of(head).nodes);
}

void attend_tasks(const Int8CacheCall& call, std::int64_t first, std::int64_t num_tasks, std::int64_t run_size,
                  const ParallelFor& parallel_for) {
  Tasks tasks(call, first, num_tasks, run_size);
  parallel_for(tasks.num_parts(), [&](std::size_t index) { tasks.score(index); });
  tasks.gather();
  parallel_for(tasks.num_parts(), [&](std::size_t index) { tasks.weigh(index); });
  tasks.gather();
  parallel_for(tasks.num_parts(), [&](std::size_t index) { tasks.sum(index); });
  tasks.finish();
}

}  // namespace reader_edge
