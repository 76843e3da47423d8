#include "attention/int8_cache_attention.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "attention/int8_cache_tasks.h"
#include "attention/tree_attention.h"
#include "cache/cache_rows.h"

namespace reader_edge {
namespace {

constexpr std::int64_t kEnoughTasks = 8;  // fewer end at different times, unless they are cut
constexpr std::int64_t kRuns = 6;         // of a task that is cut
constexpr std::int64_t kLeastRun = 2 * kRunRows;
constexpr std::int64_t kMostScores = 1 << 20;  // of tasks that are cut, which are in memory together

}  // namespace

Int8CacheAttentionBase::Int8CacheAttentionBase(const KernelAttributes& attributes, bool has_sinks)
    : rotation_(attributes), has_sinks_(has_sinks) {
  const double steps = static_cast<double>(kSteps) * kRowSteps * static_cast<double>(rotation_.block());
  unit_ = static_cast<float>(scale_of(attributes) / steps);
  if (rotation_.num_inputs() % 8 != 0 || rotation_.num_inputs() > kMostHeadSize) {
    throw std::invalid_argument("attention: its heads are too large, or no multiple of eight");
  }
}

void Int8CacheAttentionBase::compute(KernelCall& call) const {
  const auto query = call.input<float>(0), mask = call.input<float>(5);
  const auto keys = call.input<std::int8_t>(3), values = call.input<std::int8_t>(4);
  if (query.sizes.size() != 4 || keys.sizes.size() != 4 || mask.sizes.size() != 4 || keys.sizes != values.sizes) {
    throw std::invalid_argument("attention: its inputs need four axes, keys and values the same sizes");
  }
  const AttentionShape shape{query.sizes[0], query.sizes[1], keys.sizes[1], query.sizes[2], mask.sizes[3],
                             keys.sizes[2],  query.sizes[3], 0.0f,          true};
  const bool fits = shape.head_size == static_cast<std::int64_t>(rotation_.num_inputs()) &&
                    keys.sizes[0] == shape.batch && keys.sizes[3] == shape.head_size + kMagnitudeBytes &&
                    shape.kv_heads > 0 && shape.query_heads % shape.kv_heads == 0 && mask.sizes[0] == shape.batch &&
                    mask.sizes[1] == 1 && mask.sizes[2] == shape.nodes && 0 < shape.visible &&
                    shape.visible <= shape.capacity;
  if (!fits) throw std::invalid_argument("attention: sizes of query, keys, values and mask do not fit");
  float* const output = call.output<float>(0, {shape.batch, shape.nodes, shape.query_heads * shape.head_size}).data;
  if (shape.batch == 0 || shape.nodes == 0 || shape.query_heads == 0) return;

  const float* const sinks = has_sinks_ ? sinks_of(call, 6, shape.query_heads) : nullptr;
  const auto on_all_threads = [&](std::size_t count, const auto& work) { call.parallel_for(count, work); };
  const auto parts = parts_of_sequences(shape, query.data, mask.data, on_all_threads);
  const Int8CacheCall tensors{shape,       rotation_, unit_, query.data, keys.data,
                              values.data, mask.data, sinks, output,     parts};
  const std::int64_t num_tasks = tensors.num_tasks(), seen = tensors.most_seen();
  const std::int64_t run = std::max((seen / kRuns / kRunRows + 1) * kRunRows, kLeastRun);
  const bool is_cut = num_tasks < kEnoughTasks && seen >= 2 * kLeastRun &&
                      num_tasks * tensors.rows_of_task() * tensors.score_stride() <= kMostScores;
  if (is_cut) {
    attend_tasks(tensors, 0, num_tasks, run, on_all_threads);
    return;
  }
  const auto in_turn = [](std::size_t count, const auto& work) {
    for (std::size_t i = 0; i < count; ++i) work(i);
  };
  call.parallel_for(static_cast<std::size_t>(num_tasks), [&](std::size_t task) {
    attend_tasks(tensors, static_cast<std::int64_t>(task), 1, (seen / kRunRows + 1) * kRunRows, in_turn);
  });
}

}  // namespace reader_edge
