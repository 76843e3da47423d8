#include "fusion/swiglu.h"

#include <algorithm>
#include <stdexcept>

#include "kernels.h"
#include "products/distinct_rows.h"

namespace reader_edge {
namespace {

constexpr std::size_t kTaskColumns = 2048;
constexpr std::size_t kSerialElements = 8 * 1024;  // fewer are not worth waking threads

}  // namespace

void SwiGlu::compute(KernelCall& call) const {
  const auto gate_up = call.input<float>(0);
  const std::size_t rank = gate_up.sizes.size();
  if (rank == 0 || gate_up.sizes.back() % 2 != 0) throw std::invalid_argument("SwiGLU: its input has no two halves");
  auto sizes = gate_up.sizes;
  sizes.back() /= 2;
  float* const output = call.output<float>(0, sizes).data;
  const std::size_t width = gate_up.size(rank - 1) / 2, num_rows = gate_up.count(0, rank - 1);

  // A task is a run of columns of a row.
  const DistinctRows rows = distinct_rows(gate_up.data, num_rows, 2 * width);
  const std::size_t num_runs = (width + kTaskColumns - 1) / kTaskColumns;
  const auto compute_run = [&](std::size_t task) {
    const std::size_t row = rows.places[task / num_runs], first = task % num_runs * kTaskColumns;
    const std::size_t count = std::min(kTaskColumns, width - first);
    const float* const gate = gate_up.data + row * 2 * width + first;
    kernels().swiglu.gated(gate, gate + width, count, output + row * width + first);
    rows.repeat(task / num_runs, 1, first, first + count, output, width);
  };
  if (rows.count * width <= kSerialElements) {
    for (std::size_t task = 0; task < rows.count * num_runs; ++task) compute_run(task);
  } else {
    call.parallel_for(rows.count * num_runs, compute_run);
  }
}

}  // namespace reader_edge
