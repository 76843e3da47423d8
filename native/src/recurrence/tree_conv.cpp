// The convolution of a draft tree: each node meets its nearest ancestors, then pending and stored rows.
#include "recurrence/tree_conv.h"

#include <algorithm>
#include <stdexcept>

#include "kernels.h"
#include "recurrence/tree_nodes.h"

namespace reader_edge {
namespace {

constexpr std::size_t kTaskChannels = 1024;
constexpr std::size_t kSerialNumbers = 32 * 1024;  // fewer are not worth waking threads

// Rows that a sequence's nodes meet: each is before the next one, but for the nodes' own, which know theirs.
struct Rows {
  const float *stored, *pending, *input;
  std::size_t num_stored, num_pending, num_channels;
  const TreeNodes& tree;

  // Rows of nodes come after those that are known: of the state, and pending.
  std::size_t num_known() const { return num_stored + num_pending; }
  std::size_t before(std::size_t row) const {
    if (row < num_known()) return row - 1;
    const std::int64_t node = tree.before[row - num_known()];
    return node < 0 ? num_known() - 1 : num_known() + static_cast<std::size_t>(node);
  }
  const float* at(std::size_t row) const {
    if (row < num_stored) return stored + row * num_channels;
    if (row < num_known()) return pending + (row - num_stored) * num_channels;
    return input + (row - num_known()) * num_channels;
  }
};

}  // namespace

TreeConv::TreeConv(const KernelAttributes& attributes) {
  const auto weight = attributes.constant<float>(1);
  if (weight.sizes.size() != 2 || weight.sizes[0] < 1 || weight.sizes[1] < 2) {
    throw std::invalid_argument("TreeConv: its weight has no two columns for each channel");
  }
  num_channels_ = weight.size(0);
  num_taps_ = weight.size(1);
  weight_.resize(num_taps_ * num_channels_);
  for (std::size_t channel = 0; channel < num_channels_; ++channel) {
    for (std::size_t tap = 0; tap < num_taps_; ++tap) {
      weight_[(num_taps_ - 1 - tap) * num_channels_ + channel] = weight.data[channel * num_taps_ + tap];
    }
  }
}

void TreeConv::compute(KernelCall& call) const {
  const auto input = call.input<float>(0), state = call.input<float>(4), pending = call.input<float>(5);
  const auto refuse = [] { throw std::invalid_argument("TreeConv: sizes of input, state and pending do not fit"); };
  if (input.sizes.size() != 3 || pending.sizes.size() != 3) refuse();
  const std::int64_t batch = input.sizes[0], num_nodes = input.sizes[1], num_slots = pending.sizes[1];
  const auto channels = static_cast<std::int64_t>(num_channels_), num_stored = static_cast<std::int64_t>(num_taps_) - 1;
  const std::vector<std::int64_t> states{batch, num_stored, channels}, rows_pending{batch, num_slots, channels};
  if (batch < 1 || num_nodes < 1 || input.sizes[2] != channels || state.sizes != states || pending.sizes != rows_pending) refuse();
  const TreeInputs inputs{call.input<std::int64_t>(2), call.input<std::int64_t>(3), call.input<std::int64_t>(6)};
  const std::vector<TreeNodes> trees = trees_of(kName, inputs, batch, num_nodes, num_slots);
  float* const output = call.output<float>(0, input.sizes).data;
  float* const present = call.output<float>(1, states).data;

  // A task is a run of channels of a sequence.
  const std::size_t num_runs = (num_channels_ + kTaskChannels - 1) / kTaskChannels, width = input.size(1);
  const auto convolve_run = [&](std::size_t task) {
    const std::size_t b = task / num_runs, first = task % num_runs * kTaskChannels;
    const std::size_t count = std::min(kTaskChannels, num_channels_ - first);
    const TreeNodes& tree = trees[b];
    const Rows rows{state.data + b * (num_taps_ - 1) * num_channels_,
                    pending.data + b * pending.size(1) * num_channels_,
                    input.data + b * width * num_channels_,
                    num_taps_ - 1,
                    tree.num_pending,
                    num_channels_,
                    tree};
    std::vector<const float*> taps(num_taps_);
    const auto find_taps = [&](std::size_t row, std::size_t num_taps) {
      taps[0] = rows.at(row) + first;
      for (std::size_t tap = 1; tap < num_taps; ++tap) taps[tap] = rows.at(row = rows.before(row)) + first;
    };
    for (std::size_t node = 0; node < width; ++node) {
      find_taps(rows.num_known() + node, num_taps_);
      float* const to = output + (b * width + node) * num_channels_ + first;
      kernels().conv.convolve(taps.data(), num_taps_, weight_.data() + first, num_channels_, count, to);
    }
    // The oldest row first: where present is the state itself, none is written before it is read.
    const std::size_t num_stored = num_taps_ - 1;
    find_taps(rows.num_known() + tree.num_kept - 1, num_stored);
    for (std::size_t place = 0; place < num_stored; ++place) {
      float* const to = present + (b * num_stored + place) * num_channels_ + first;
      if (const float* const from = taps[num_stored - 1 - place]; from != to) std::copy_n(from, count, to);
    }
  };
  const std::size_t num_tasks = static_cast<std::size_t>(batch) * num_runs;
  if (static_cast<std::size_t>(batch) * width * num_channels_ <= kSerialNumbers) {
    for (std::size_t task = 0; task < num_tasks; ++task) convolve_run(task);
  } else {
    call.parallel_for(num_tasks, convolve_run);
  }
}

}  // namespace reader_edge
