#include "attention/tree_attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "attention/attention.h"

namespace reader_edge {
namespace {

constexpr std::int64_t kMaxMaskElements = INT32_MAX;  // of a sequence: the kernels find them by 32-bit offsets

KvRows rows_of(const float* rows) { return {rows, nullptr}; }
KvRows rows_of(const std::uint16_t* rows) { return {nullptr, rows}; }

}  // namespace

float scale_of(const KernelAttributes& attributes) {
  const float scale = attributes.number("scale");
  if (!std::isfinite(scale)) throw std::invalid_argument("attention: its scale is not a finite number");
  return scale;
}

const float* sinks_of(const KernelCall& call, std::size_t index, std::int64_t query_heads) {
  const auto sinks = call.input<float>(index);
  const std::size_t count = static_cast<std::size_t>(query_heads);
  if (sinks.sizes.size() != 1 || sinks.size(0) != count) {
    throw std::invalid_argument("attention: it needs a sink for each head");
  }
  if (!std::all_of(sinks.data, sinks.data + count, [](float sink) { return std::isfinite(sink); })) {
    throw std::invalid_argument("attention: its sinks are not all finite numbers");
  }
  return sinks.data;
}

TreeAttention::TreeAttention(const KernelAttributes& attributes, const AttentionForm& form)
    : scale_(scale_of(attributes)), form_(form) {}

void TreeAttention::compute(KernelCall& call) const {
  if (form_.has_half_cache) {
    compute_over<std::uint16_t>(call);
  } else {
    compute_over<float>(call);
  }
}

template <class Element>
void TreeAttention::compute_over(KernelCall& call) const {
  const auto query = call.input<float>(0);
  const auto keys = call.input<Element>(1), values = call.input<Element>(2);
  const auto mask = call.input<float>(3);
  if (query.sizes.size() != 4 || keys.sizes.size() != 4 || mask.sizes.size() != 4 || keys.sizes != values.sizes) {
    throw std::invalid_argument("attention: its inputs need four axes, keys and values the same sizes");
  }
  const AttentionShape shape{query.sizes[0], query.sizes[1], keys.sizes[1], query.sizes[2],
                             mask.sizes[3],  keys.sizes[2],  query.sizes[3], scale_, form_.has_merged_heads};
  const bool fits = keys.sizes[0] == shape.batch && keys.sizes[3] == shape.head_size && shape.kv_heads > 0 &&
                    shape.query_heads % shape.kv_heads == 0 && shape.head_size > 0 && shape.head_size % 8 == 0 &&
                    mask.sizes[0] == shape.batch && mask.sizes[1] == 1 && mask.sizes[2] == shape.nodes &&
                    0 < shape.visible && shape.visible <= shape.capacity &&
                    shape.nodes <= kMaxMaskElements / shape.visible;
  if (!fits) throw std::invalid_argument("attention: sizes of query, keys, values and mask do not fit");
  auto sizes = query.sizes;
  if (form_.has_merged_heads) sizes = {shape.batch, shape.nodes, shape.query_heads * shape.head_size};
  const float* const sinks = form_.has_sinks ? sinks_of(call, 4, shape.query_heads) : nullptr;
  const AttentionTensors tensors{query.data, rows_of(keys.data), rows_of(values.data), mask.data, sinks,
                                 call.output<float>(0, sizes).data};
  const auto count = static_cast<std::size_t>(num_tasks(shape));
  const auto on_all_threads = [&](std::size_t tasks, const auto& work) { call.parallel_for(tasks, work); };
  const auto parts = parts_of_sequences(shape, query.data, mask.data, on_all_threads);
  const auto work = [&](std::size_t task) {
    attend(shape, tensors, parts, form_.has_integers, static_cast<std::int64_t>(task));
  };
  call.parallel_for(count, work);
}

}  // namespace reader_edge
