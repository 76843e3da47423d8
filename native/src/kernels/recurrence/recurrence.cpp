// One step of a recurrent layer's state, columns in lanes: decay, update by key and value, read-out by the query.
#include "recurrence/recurrence.h"

#include "lanes/exponential.h"
#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

// A run of columns in so many vectors; where there is one alone, its first lanes.
template <int kVectors>
struct Columns {
  Lanes lanes;

  Floats load_at(const float* p) const { return kVectors == 1 ? load(p, lanes) : load(p); }
  void store_at(float* p, Floats x) const { kVectors == 1 ? store(p, x, lanes) : store(p, x); }
};

// What keys recall of a decayed state, in the order of the keys.
template <int kVectors>
void recall(const StateStep& step, std::size_t first, Columns<kVectors> columns, Floats (&sums)[kVectors]) {
  const Floats decay = all(step.decay);
  const float* from = step.from + first;
  for (std::size_t k = 0; k < step.num_keys; ++k, from += step.from_stride) {
    const Floats key = all(step.key[k]);
    for (int v = 0; v < kVectors; ++v) {
      const Floats product = columns.load_at(from + v * kLanes) * decay * key;
      sums[v] = k == 0 ? product : sums[v] + product;
    }
  }
}

template <int kVectors, bool kIsKept, bool kIsRead>
void change(const StateStep& step, std::size_t first, Columns<kVectors> columns, const Floats (&changes)[kVectors]) {
  const Floats decay = all(step.decay);
  const float* from = step.from + first;
  float* to = step.to + first;
  Floats sums[kVectors];
  for (std::size_t k = 0; k < step.num_keys; ++k, from += step.from_stride, to += step.to_stride) {
    const Floats key = all(step.key[k]);
    for (int v = 0; v < kVectors; ++v) {
      const Floats next = columns.load_at(from + v * kLanes) * decay + key * changes[v];
      if (kIsKept) columns.store_at(to + v * kLanes, next);
      if (!kIsRead) continue;
      const Floats product = next * all(step.query[k]);
      sums[v] = k == 0 ? product : sums[v] + product;
    }
  }
  if (!kIsRead) return;
  for (int v = 0; v < kVectors; ++v) columns.store_at(step.output + first + v * kLanes, sums[v]);
}

template <bool kIsDelta, int kVectors>
void take(const StateStep& step, std::size_t first) {
  const Columns<kVectors> columns{first_lanes(step.num_columns - first)};
  Floats changes[kVectors];
  if (kIsDelta) recall(step, first, columns, changes);
  for (int v = 0; v < kVectors; ++v) {
    const Floats value = columns.load_at(step.value + first + v * kLanes);
    changes[v] = kIsDelta ? (value - changes[v]) * all(step.beta) : value;
  }
  if (step.query == nullptr) return change<kVectors, true, false>(step, first, columns, changes);
  if (step.to == nullptr) return change<kVectors, false, true>(step, first, columns, changes);
  change<kVectors, true, true>(step, first, columns, changes);
}

template <bool kIsDelta>
void take_all(const StateStep& step) {
  std::size_t first = 0;
  for (; first + kStateVectors * kLanes <= step.num_columns; first += kStateVectors * kLanes) {
    take<kIsDelta, kStateVectors>(step, first);
  }
  for (; first < step.num_columns; first += kLanes) take<kIsDelta, 1>(step, first);
}

void exponentials(const float* numbers, std::size_t count, float* output) {
  for (std::size_t i = 0; i < count; i += kLanes) {
    const Lanes lanes = first_lanes(count - i);
    store(output + i, exp_of(min(all(kExpMax), load(numbers + i, lanes))), lanes);
  }
}

}  // namespace

extern const RecurrenceKernels recurrence_kernels{kStateVectors * kLanes, take_all<true>, take_all<false>, exponentials};

}  // namespace reader_edge::READER_EDGE_LANES
