#include "adapters/low_rank_rows.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "kernels.h"
#include "machine/scratch.h"

namespace reader_edge {
namespace {

constexpr std::size_t kGroupRows = 16;  // of a task
constexpr std::size_t kTaskRanks = 4;
constexpr std::size_t kTaskBytes = 48 * 1024;       // of `up`
constexpr std::size_t kSerialProducts = 64 * 1024;  // fewer are not worth waking threads
constexpr std::int64_t kMaxSize = std::int64_t{1} << 40;

std::size_t rounded_up(std::size_t size, std::size_t step) { return (size + step - 1) / step * step; }

// Rows of an adapter. repeats: rows directly behind each that have the same inputs, as the padding of trees does.
struct Rows {
  std::vector<const float*> inputs;
  std::vector<float*> outputs;
  std::vector<std::size_t> repeats;
};

// [first, first + count) of all rows, with the factors of their product.
template <class Factor>
struct Group {
  const Factor* factors;
  std::size_t first, count;
};

template <class Factor>
struct Place {
  const Factor* down;
  const Factor* up;
};

template <class Work>
void run(KernelCall& call, std::size_t count, std::size_t products, const Work& work) {
  if (products > kSerialProducts && count > 1) return call.parallel_for(count, work);
  for (std::size_t index = 0; index < count; ++index) work(index);
}

}  // namespace

template <class Factor>
LowRankRows<Factor>::LowRankRows(const KernelAttributes& attributes) {
  const auto size_of = [&](const char* name) {
    const std::int64_t size = attributes.integer(name);
    if (size < 0 || size > kMaxSize) throw std::invalid_argument("LowRankRows: its place in the table is out of range");
    return static_cast<std::size_t>(size);
  };
  start_ = size_of("start");
  size_ = size_of("size");
  const auto parts = attributes.constant<std::int64_t>(4);
  for (std::size_t part = 0; part < parts.count(0, parts.sizes.size()); ++part) {
    if (parts.data[part] <= 0 || parts.data[part] > kMaxSize) {
      throw std::invalid_argument("LowRankRows: its numbers of outputs are out of range");
    }
    parts_.push_back(static_cast<std::size_t>(parts.data[part]));
  }
}

template <class Factor>
void LowRankRows<Factor>::compute(KernelCall& call) const {
  const auto rows = call.input<float>(0), product = call.input<float>(1);
  const auto table = call.input<Factor>(3);
  const auto ids = call.input<std::int64_t>(2);
  float* const outputs = call.output<float>(0, product.sizes).data;
  const std::size_t rank = rows.sizes.size(), num_trees = ids.count(0, ids.sizes.size());
  if (rank == 0 || product.sizes.size() != rank) throw std::invalid_argument("LowRankRows: rows and outputs differ");
  const std::size_t num_rows = rows.count(0, rank - 1), num_inputs = rows.size(rank - 1);
  const std::size_t num_outputs = product.size(rank - 1);
  if (outputs != product.data) std::copy_n(product.data, num_rows * num_outputs, outputs);
  if (std::all_of(ids.data, ids.data + num_trees, [](std::int64_t id) { return id == -1; })) return;

  std::size_t end = start_, sum = 0;
  for (const std::size_t part : parts_) {
    end += rounded_up(num_inputs, kDownStep) + rounded_up(part, kUpPanel);
    sum += part;
  }
  if (product.count(0, rank - 1) != num_rows || num_rows % num_trees != 0 || sum != num_outputs || end > size_ ||
      table.sizes.size() != 2 || table.size(1) % size_ != 0) {
    throw std::invalid_argument("LowRankRows: sizes of rows, outputs, ids and table do not fit");
  }
  const std::size_t num_ranks = table.size(1) / size_, nodes = num_rows / num_trees, num_parts = parts_.size();

  // Rows by their adapters, so that those of several sequences share reads of one.
  Rows by_adapter;
  std::vector<Group<Factor>> groups;
  std::vector<std::int64_t> order(ids.data, ids.data + num_trees);
  std::sort(order.begin(), order.end());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  for (const std::int64_t id : order) {
    if (id == -1) continue;
    if (id < 0 || id >= table.sizes[0]) throw std::invalid_argument("LowRankRows: the table has no such adapter");
    std::size_t first = by_adapter.inputs.size();
    for (std::size_t row = 0; row < num_rows; ++row) {
      if (ids.data[row / nodes] != id) continue;
      const float* const inputs = rows.data + row * num_inputs;
      if (row % nodes > 0 && std::memcmp(inputs - num_inputs, inputs, num_inputs * sizeof(float)) == 0) {
        ++by_adapter.repeats.back();
        continue;
      }
      by_adapter.inputs.push_back(inputs);
      by_adapter.outputs.push_back(outputs + row * num_outputs);
      by_adapter.repeats.push_back(0);
    }
    const Factor* const factors = table.data + (static_cast<std::size_t>(id) * size_ + start_) * num_ranks;
    for (; first < by_adapter.inputs.size(); first += kGroupRows) {
      groups.push_back({factors, first, std::min(kGroupRows, by_adapter.inputs.size() - first)});
    }
  }
  const std::size_t down_size = rounded_up(num_inputs, kDownStep) * num_ranks;
  const auto place_of = [&](const Group<Factor>& group, std::size_t part) {
    const Factor* down = group.factors;
    for (std::size_t before = 0; before < part; ++before) {
      down += down_size + rounded_up(parts_[before], kUpPanel) * num_ranks;
    }
    return Place<Factor>{down, down + down_size};
  };
  const LowRankKernels& all = kernels().low_rank;
  const FactorKernels<Factor>& kernel = [&]() -> const auto& {
    if constexpr (kIsHalf) return all.halves;
    else return all.floats;
  }();
  const std::size_t num_distinct = by_adapter.inputs.size();
  thread_local Scratch kept_values;
  float* const values = kept_values.take<float>(static_cast<std::int64_t>(num_distinct * num_parts * num_ranks));

  // A task: some ranks of a part, of a group of rows.
  const std::size_t rank_runs = (num_ranks + kTaskRanks - 1) / kTaskRanks;
  run(call, groups.size() * num_parts * rank_runs, num_distinct * num_parts * num_ranks * num_inputs,
      [&](std::size_t index) {
        const Group<Factor>& group = groups[index / rank_runs / num_parts];
        const std::size_t part = index / rank_runs % num_parts, begin = index % rank_runs * kTaskRanks;
        const std::size_t stop = std::min(begin + kTaskRanks, num_ranks);
        const Factor* const down = place_of(group, part).down;
        alignas(64) float sums[kGroupRows * kTaskRanks * kDownStep] = {};
        for (std::size_t k = 0; k < num_inputs; k += kDownRun) {
          const std::size_t width = std::min(kDownRun, num_inputs - k), padded = rounded_up(width, kDownStep);
          for (std::size_t row = 0; row < group.count; row += all.tile_rows) {
            for (std::size_t r = begin; r < stop; ++r) {
              kernel.add_run(by_adapter.inputs.data() + group.first + row, k,
                             std::min(all.tile_rows, group.count - row), down + k * num_ranks + r * padded, width,
                             sums + (row * kTaskRanks + r - begin) * kDownStep, kTaskRanks * kDownStep);
            }
          }
        }
        for (std::size_t row = 0; row < group.count; ++row) {
          for (std::size_t r = begin; r < stop; ++r) {
            values[((group.first + row) * num_parts + part) * num_ranks + r] =
                all.joined(sums + (row * kTaskRanks + r - begin) * kDownStep);
          }
        }
      });

  // A task: some panels of all parts, of a group of rows.
  std::size_t num_panels = 0;
  for (const std::size_t part : parts_) num_panels += rounded_up(part, kUpPanel) / kUpPanel;
  const std::size_t panel_size = kUpPanel * num_ranks;
  const std::size_t run_panels = std::max<std::size_t>(kTaskBytes / sizeof(Factor) / std::max<std::size_t>(panel_size, 1), 1);
  const std::size_t panel_runs = (num_panels + run_panels - 1) / run_panels;
  run(call, groups.size() * panel_runs, num_distinct * num_ranks * num_outputs, [&](std::size_t index) {
    const Group<Factor>& group = groups[index / panel_runs];
    const std::size_t begin = index % panel_runs * run_panels, stop = std::min(begin + run_panels, num_panels);
    std::size_t first_panel = 0, first_output = 0;
    for (std::size_t part = 0; part < num_parts; ++part) {
      const std::size_t count = rounded_up(parts_[part], kUpPanel) / kUpPanel;
      const Factor* const up = place_of(group, part).up;
      for (std::size_t panel = std::max(begin, first_panel); panel < std::min(stop, first_panel + count); ++panel) {
        const std::size_t offset = (panel - first_panel) * kUpPanel;
        const std::size_t width = std::min(kUpPanel, parts_[part] - offset);
        for (std::size_t row = 0; row < group.count; row += all.tile_rows) {
          const std::size_t place = group.first + row;
          kernel.add_panel(values + (place * num_parts + part) * num_ranks, num_parts * num_ranks,
                           std::min(all.tile_rows, group.count - row), up + (panel - first_panel) * panel_size,
                           num_ranks, by_adapter.outputs.data() + place, first_output + offset, width);
        }
        for (std::size_t place = group.first; place < group.first + group.count; ++place) {
          const float* const made = by_adapter.outputs[place] + first_output + offset;
          for (std::size_t copy = 1; copy <= by_adapter.repeats[place]; ++copy) {
            std::copy_n(made, width, by_adapter.outputs[place] + copy * num_outputs + first_output + offset);
          }
        }
      }
      first_panel += count;
      first_output += parts_[part];
    }
  });
}

template class LowRankRows<float>;
template class LowRankRows<std::uint16_t>;

}  // namespace reader_edge
