// Cuts attention over an fp32 or fp16 KV cache into tasks for threads: one KV head and some of its query rows each.
#include "attention/attention.h"

#include <algorithm>
#include <cstring>

#include "kernels.h"
#include "machine/scratch.h"

namespace reader_edge {
namespace {

constexpr std::int64_t kRowStep = 16;  // tasks of a head have as many rows as each other, but for a rest
constexpr std::int64_t kColumnStep = 64;
constexpr std::int64_t kSerialColumns = 32 * 1024;  // of a mask: fewer are not worth waking threads
constexpr float kMasked = -1e29f;  // a masked score's exponential is zero

std::int64_t divided_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

std::int64_t group_size(const AttentionShape& s) { return s.query_heads / s.kv_heads; }

std::int64_t tasks_of(std::int64_t num_rows) { return divided_up(num_rows, kMaxTaskRows); }

std::int64_t most_tasks_of_head(const AttentionShape& s) { return tasks_of(group_size(s) * s.nodes); }

// Whether a node of a sequence asks the same as the one before it.
bool is_repeated(const AttentionShape& s, const float* query, const float* mask, std::int64_t node) {
  const auto is_same = [node](const float* rows, std::int64_t size) {
    const float* const row = rows + node * size;
    return std::memcmp(row - size, row, static_cast<std::size_t>(size) * sizeof(float)) == 0;
  };
  if (!is_same(mask, s.visible)) return false;
  for (std::int64_t head = 0; head < s.query_heads; ++head, query += s.nodes * s.head_size) {
    if (!is_same(query, s.head_size)) return false;
  }
  return true;
}

// How many of the first `count` columns are masked, in whole steps.
std::int64_t masked_before(const float* mask, std::int64_t count) {
  std::int64_t j = 0;
  for (; j + kColumnStep <= count; j += kColumnStep) {
    std::int32_t is_seen = 0;  // no bool, with which compilers make no vectors of it
    for (std::int64_t i = 0; i < kColumnStep; ++i) is_seen |= mask[j + i] <= kMasked ? 0 : 1;
    if (is_seen != 0) break;
  }
  return j;
}

// What a node sees: columns [begin, end), those before `first` without a word of the mask.
struct Seen {
  std::int64_t begin, first, end;
};

Seen seen_by(const float* mask, std::int64_t visible) {
  std::int64_t end = visible;
  while (end > 0 && mask[end - 1] <= kMasked) --end;
  if (end == 0) return {0, 0, visible};  // a node that sees nothing sees every column alike
  const std::int64_t begin = masked_before(mask, end);
  return {begin, begin + kernels().attention.zeros_before(mask + begin, end - begin), end};
}

// seen, ends: (N,), of which those of nodes that repeat others are not written.
SequencePart part_of(const AttentionShape& s, const float* query, const float* mask, const ParallelFor& parallel_for,
                     Seen* seen, std::int64_t* ends) {
  SequencePart part{s.visible, s.visible, 0, s.nodes, ends};
  while (part.nodes > 1 && is_repeated(s, query, mask, part.nodes - 1)) --part.nodes;
  const auto see = [&](std::size_t node) {
    seen[node] = seen_by(mask + static_cast<std::int64_t>(node) * s.visible, s.visible);
  };
  if (part.nodes * s.visible > kSerialColumns) {
    parallel_for(static_cast<std::size_t>(part.nodes), see);
  } else {
    for (std::size_t node = 0; node < static_cast<std::size_t>(part.nodes); ++node) see(node);
  }
  for (std::int64_t node = 0; node < part.nodes; ++node) part.begin = std::min(part.begin, seen[node].begin);
  for (std::int64_t node = 0; node < part.nodes; ++node) {
    part.first = std::min(part.first, seen[node].begin == part.begin ? seen[node].first - part.begin : 0);
    ends[node] = seen[node].end - part.begin;
    part.last = std::max(part.last, ends[node]);
  }
  return part;
}

KvRows rows_behind(const KvRows& rows, std::int64_t offset) {
  return rows.floats ? KvRows{rows.floats + offset, nullptr} : KvRows{nullptr, rows.halves + offset};
}

}  // namespace

std::int64_t SequencePart::last_of(std::int64_t first_row, std::int64_t count) const {
  std::int64_t end = 0;
  for (std::int64_t row = first_row; row < first_row + count; ++row) end = std::max(end, ends[row % nodes]);
  return end;
}

std::vector<SequencePart> parts_of_sequences(const AttentionShape& s, const float* query, const float* mask,
                                             const ParallelFor& parallel_for) {
  static thread_local Scratch kept_seen, kept_ends;
  Seen* const seen = kept_seen.take<Seen>(s.nodes);
  std::int64_t* const ends = kept_ends.take<std::int64_t>(s.batch * s.nodes);
  std::vector<SequencePart> parts;
  for (std::int64_t sequence = 0; sequence < s.batch; ++sequence) {
    parts.push_back(part_of(s, query, mask, parallel_for, seen, ends + sequence * s.nodes));
    query += s.query_heads * s.nodes * s.head_size;
    mask += s.nodes * s.visible;
  }
  return parts;
}

std::int64_t num_tasks(const AttentionShape& s) { return s.batch * s.kv_heads * most_tasks_of_head(s); }

void attend(const AttentionShape& s, const AttentionTensors& tensors, const std::vector<SequencePart>& parts,
            bool has_integers, std::int64_t task) {
  const std::int64_t head = task / most_tasks_of_head(s), index = task % most_tasks_of_head(s);
  const std::int64_t sequence = head / s.kv_heads, group = group_size(s);
  SequencePart part = parts[static_cast<std::size_t>(sequence)];
  const std::int64_t num_rows = group * part.nodes, tasks = tasks_of(num_rows);
  if (index >= tasks) return;
  const std::int64_t task_rows = divided_up(divided_up(num_rows, kRowStep), tasks) * kRowStep;
  const std::int64_t first = index * task_rows, count = std::min(task_rows, num_rows - first);
  part.last = part.last_of(first, count);
  const std::int64_t node_size = (s.has_merged_heads ? s.query_heads : 1) * s.head_size;  // between outputs of a head

  QueryPlace rows[kMaxTaskRows];
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t query_head = head * group + (first + r) / part.nodes, node = (first + r) % part.nodes;
    const std::int64_t begin = query_head * s.nodes * s.head_size;
    const std::int64_t merged = sequence * s.nodes * node_size + query_head % s.query_heads * s.head_size;
    rows[r] = {tensors.query + begin + node * s.head_size,
               tensors.output + (s.has_merged_heads ? merged : begin) + node * node_size,
               static_cast<std::int32_t>(node * s.visible), sink_of(tensors.sinks, query_head % s.query_heads)};
  }
  const std::int64_t offset = part.begin * s.head_size;
  const AttentionTensors seen{tensors.query, rows_behind(tensors.keys, offset), rows_behind(tensors.values, offset),
                              tensors.mask + part.begin, tensors.sinks, tensors.output};
  kernels().attention.attend(s, seen, part, has_integers, head, rows, count);
  for (std::int64_t r = 0; r < count; ++r) {
    if ((first + r) % part.nodes != part.nodes - 1) continue;
    for (std::int64_t copy = 1; copy <= s.nodes - part.nodes; ++copy) {
      std::copy_n(rows[r].output, s.head_size, rows[r].output + copy * node_size);
    }
  }
}

}  // namespace reader_edge
