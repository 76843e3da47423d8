// A task is one KV head and some of its query rows.
#include "attention.h"

#include <algorithm>

#include "kernels.h"

namespace reader_edge {
namespace {

constexpr std::int64_t kRowStep = 16;  // tasks of a head have as many rows as each other, but for a rest
constexpr float kMasked = -1e29f;      // a masked score's exponential is zero

std::int64_t divided_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

std::int64_t tasks_of_head(const AttentionShape& s) { return divided_up(rows_of_head(s), kMaxTaskRows); }

}  // namespace

std::vector<MaskedColumns> masked_columns(const AttentionShape& s, const float* mask) {
  std::vector<MaskedColumns> columns;
  for (std::int64_t sequence = 0; sequence < s.batch; ++sequence) {
    std::int64_t first = s.visible, last = 0;
    for (std::int64_t node = 0; node < s.nodes; ++node, mask += s.visible) {
      first = kernels().attention.zeros_before(mask, first);
      std::int64_t end = s.visible;
      while (end > 0 && mask[end - 1] <= kMasked) --end;
      last = std::max(last, end == 0 ? s.visible : end);  // a node of padding sees nothing: then every column alike
    }
    columns.push_back({first, last});
  }
  return columns;
}

std::int64_t num_tasks(const AttentionShape& s) { return s.batch * s.kv_heads * tasks_of_head(s); }

void attend(const AttentionShape& s, const AttentionTensors& tensors, const std::vector<MaskedColumns>& columns,
            bool has_integers, std::int64_t task) {
  const std::int64_t head = task / tasks_of_head(s);
  const std::int64_t task_rows = divided_up(divided_up(rows_of_head(s), kRowStep), tasks_of_head(s)) * kRowStep;
  const std::int64_t first = task % tasks_of_head(s) * task_rows;
  kernels().attention.attend(s, tensors, columns[static_cast<std::size_t>(head / s.kv_heads)], has_integers, head, first,
                             std::min(task_rows, rows_of_head(s) - first));
}

}  // namespace reader_edge
