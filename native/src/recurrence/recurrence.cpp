#include "recurrence/recurrence.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"
#include "machine/scratch.h"
#include "recurrence/tree_nodes.h"

namespace reader_edge {
namespace {

constexpr std::size_t kSerialNumbers = 32 * 1024;  // of states, times nodes: fewer are not worth waking threads
constexpr std::size_t kNone = static_cast<std::size_t>(-1);

// Where a node's parent left its state, and where its own goes: places in scratch, kNone for the committed state and for
// one that nobody needs.
struct Places {
  std::size_t from, to;
};

struct Plan {
  TreeNodes tree;
  std::vector<Places> places;  // of the nodes behind those that are kept
  std::size_t num_places;
};

// A place is free again behind the last node that hangs on it, and for that node already.
Plan plan_of(TreeNodes tree) {
  const std::size_t count = tree.count();
  std::vector<std::size_t> num_children(count), place_of(count, kNone), free;
  Plan plan{std::move(tree), {}, 0};
  const auto parent_of = [&](std::size_t node) {
    const std::int64_t before = plan.tree.before[node];
    return before < static_cast<std::int64_t>(plan.tree.num_kept) ? kNone : static_cast<std::size_t>(before);
  };
  for (std::size_t node = plan.tree.num_kept; node < count; ++node) {
    if (parent_of(node) != kNone) ++num_children[parent_of(node)];
  }
  for (std::size_t node = plan.tree.num_kept; node < count; ++node) {
    const std::size_t parent = parent_of(node), from = parent == kNone ? kNone : place_of[parent];
    if (parent != kNone && --num_children[parent] == 0) free.push_back(from);
    if (num_children[node] > 0) {
      if (free.empty()) free.push_back(plan.num_places++);
      place_of[node] = free.back();
      free.pop_back();
    }
    plan.places.push_back({from, place_of[node]});
  }
  return plan;
}

// A call's tensors, and how its capsules are laid out.
struct Call {
  std::size_t num_nodes, num_slots, key_heads, heads, key_size, value_size;
  const float *query, *state, *pending;
  float *output, *present, *capsules;
  bool is_delta;

  std::size_t num_keys() const { return key_heads * key_size; }
  std::size_t num_values() const { return heads * value_size; }
  std::size_t state_size() const { return key_size * value_size; }
  std::size_t capsule_size() const { return num_keys() + num_values() + (is_delta ? 2 : 1) * heads; }
};

// One head of a sequence.
class HeadWalk {
 public:
  HeadWalk(const Call& call, const Plan& plan, std::size_t sequence, std::size_t head)
      : call_(call), plan_(plan), sequence_(sequence), head_(head), key_head_(head / (call.heads / call.key_heads)) {}

  // In tiles of columns; places: memory of the plan's, and one more for the chain.
  void run(std::size_t tile_columns, float* places) {
    for (first_ = 0; first_ < call_.value_size; first_ += tile_columns) {
      count_ = std::min(tile_columns, call_.value_size - first_);
      walk_tile(places);
    }
  }

 private:
  void walk_tile(float* places) const {
    const TreeNodes& tree = plan_.tree;
    const std::size_t place_size = call_.key_size * count_;
    const std::size_t corner = (sequence_ * call_.heads + head_) * call_.state_size() + first_;
    const float* const stored = call_.state + corner;
    float* const committed = call_.present + corner;
    float* const chain = places + plan_.num_places * place_size;

    const std::size_t length = tree.num_pending + tree.num_kept;
    for (std::size_t i = 0; i < length; ++i) {
      const bool is_pending = i < tree.num_pending, is_last = i + 1 == length;
      const std::size_t node = is_pending ? kNone : i - tree.num_pending;
      StateStep step = is_pending ? step_of(call_.pending, call_.num_slots, i) : step_of(call_.capsules, call_.num_nodes, node);
      step.from = i == 0 ? stored : chain;
      step.from_stride = i == 0 ? call_.value_size : count_;
      step.to = is_last ? committed : chain;
      step.to_stride = is_last ? call_.value_size : count_;
      if (!is_pending) read_at(step, node);
      take(step);
    }
    if (length == 0 && stored != committed) {
      for (std::size_t k = 0; k < call_.key_size; ++k) {
        std::copy_n(stored + k * call_.value_size, count_, committed + k * call_.value_size);
      }
    }
    for (std::size_t node = tree.num_kept; node < tree.count(); ++node) {
      const Places& place = plan_.places[node - tree.num_kept];
      StateStep step = step_of(call_.capsules, call_.num_nodes, node);
      step.from = place.from == kNone ? committed : places + place.from * place_size;
      step.from_stride = place.from == kNone ? call_.value_size : count_;
      step.to = place.to == kNone ? nullptr : places + place.to * place_size;
      step.to_stride = count_;
      read_at(step, node);
      take(step);
    }
  }

  // What a capsule, row `row` of this sequence's, says of this head.
  StateStep step_of(const float* capsules, std::size_t num_rows, std::size_t row) const {
    const float* const capsule = capsules + (sequence_ * num_rows + row) * call_.capsule_size();
    const float* const values = capsule + call_.num_keys();
    const float* const decays = values + call_.num_values();
    StateStep step{};
    step.num_keys = call_.key_size;
    step.num_columns = count_;
    step.key = capsule + key_head_ * call_.key_size;
    step.value = values + head_ * call_.value_size + first_;
    step.decay = decays[head_];
    step.beta = call_.is_delta ? decays[call_.heads + head_] : 0.0f;
    return step;
  }

  void read_at(StateStep& step, std::size_t node) const {
    const std::size_t row = sequence_ * call_.num_nodes + node;
    step.query = call_.query + (row * call_.key_heads + key_head_) * call_.key_size;
    step.output = call_.output + (row * call_.heads + head_) * call_.value_size + first_;
  }

  void take(const StateStep& step) const {
    const RecurrenceKernels& recurrence = kernels().recurrence;
    (call_.is_delta ? recurrence.delta : recurrence.scan)(step);
  }

  const Call& call_;
  const Plan& plan_;
  const std::size_t sequence_, head_, key_head_;
  std::size_t first_ = 0, count_ = 0;
};

}  // namespace

template <bool kIsDelta>
void Recurrence<kIsDelta>::compute(KernelCall& call) const {
  constexpr std::size_t kParents = kInputs.size() - 5;
  const auto query = call.input<float>(0), key = call.input<float>(1), value = call.input<float>(2);
  const auto log_decay = call.input<float>(3), beta = call.input<float>(kIsDelta ? 4 : 3);
  const auto state = call.input<float>(kParents + 2), pending = call.input<float>(kParents + 3);
  const auto refuse = [] {
    throw std::invalid_argument(std::string(kName) + ": sizes of queries, keys, values, decays, state and pending do not fit");
  };
  if (key.sizes.size() != 4 || value.sizes.size() != 4 || pending.sizes.size() != 3) refuse();
  const std::int64_t batch = key.sizes[0], num_nodes = key.sizes[1], key_heads = key.sizes[2], key_size = key.sizes[3];
  const std::int64_t heads = value.sizes[2], value_size = value.sizes[3], num_slots = pending.sizes[1];
  const std::vector<std::int64_t> values{batch, num_nodes, heads, value_size}, decays{batch, num_nodes, heads};
  const std::vector<std::int64_t> states{batch, heads, key_size, value_size};
  const bool has_numbers = key.count(0, 4) > 0 && value.count(0, 4) > 0;
  if (!has_numbers || heads % key_heads != 0 || query.sizes != key.sizes || value.sizes != values) refuse();
  if (log_decay.sizes != decays || beta.sizes != decays || state.sizes != states || pending.sizes[0] != batch) refuse();

  const auto sized = [](std::int64_t size) { return static_cast<std::size_t>(size); };
  Call walk{sized(num_nodes), sized(num_slots), sized(key_heads), sized(heads), sized(key_size), sized(value_size),
            query.data,       state.data,       pending.data,     nullptr,      nullptr,         nullptr,
            kIsDelta};
  if (pending.size(2) != walk.capsule_size()) refuse();
  const TreeInputs inputs{call.input<std::int64_t>(kParents), call.input<std::int64_t>(kParents + 1),
                          call.input<std::int64_t>(kParents + 4)};
  std::vector<Plan> plans;
  std::size_t num_places = 0;
  for (TreeNodes& tree : trees_of(kName, inputs, batch, num_nodes, num_slots)) {
    plans.push_back(plan_of(std::move(tree)));
    num_places = std::max(num_places, plans.back().num_places + 1);
  }
  walk.output = call.output<float>(0, values).data;
  walk.present = call.output<float>(1, states).data;
  walk.capsules = call.output<float>(2, {batch, num_nodes, static_cast<std::int64_t>(walk.capsule_size())}).data;

  const auto fill_capsule = [&](std::size_t row) {
    float* at = std::copy_n(key.data + row * walk.num_keys(), walk.num_keys(), walk.capsules + row * walk.capsule_size());
    at = std::copy_n(value.data + row * walk.num_values(), walk.num_values(), at);
    kernels().recurrence.exponentials(log_decay.data + row * walk.heads, walk.heads, at);
    if (kIsDelta) std::copy_n(beta.data + row * walk.heads, walk.heads, at + walk.heads);
  };
  const std::size_t tile_columns = kernels().recurrence.tile_columns;
  const auto walk_head = [&](std::size_t task) {
    thread_local Scratch memory;
    const std::size_t place_size = walk.key_size * std::min(tile_columns, walk.value_size);
    float* const places = memory.take<float>(static_cast<std::int64_t>(num_places * place_size));
    const std::size_t sequence = task / walk.heads;
    HeadWalk(walk, plans[sequence], sequence, task % walk.heads).run(tile_columns, places);
  };
  const std::size_t num_rows = sized(batch) * walk.num_nodes, num_heads = sized(batch) * walk.heads;
  if (num_heads * walk.state_size() * walk.num_nodes <= kSerialNumbers) {
    for (std::size_t row = 0; row < num_rows; ++row) fill_capsule(row);
    for (std::size_t task = 0; task < num_heads; ++task) walk_head(task);
  } else {
    call.parallel_for(num_rows, fill_capsule);
    call.parallel_for(num_heads, walk_head);
  }
}

template class Recurrence<true>;
template class Recurrence<false>;

}  // namespace reader_edge
