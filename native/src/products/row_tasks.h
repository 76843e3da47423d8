// Cuts a matrix product, rows times panels of outputs, into tasks for threads.
#pragma once

#include <algorithm>
#include <cstddef>

#include "onnxruntime/kernel.h"

namespace reader_edge {

// Rows (count, num_inputs) times num_panels panels of outputs, panel_bytes each. pass_bytes: of a rounded row, what all
// rows read before any reads on.
struct RowTasks {
  static constexpr std::size_t kTaskBytes = 48 * 1024;    // of weights: many tasks a thread, so that threads end together
  static constexpr std::size_t kGroupBytes = 384 * 1024;  // of rounded rows: they stay in a core's own cache
  static constexpr std::size_t kSerialProducts = 64 * 1024;  // fewer are not worth waking threads
  static constexpr std::size_t kSerialRounded = 16 * 1024;   // values, likewise

  std::size_t num_rows, num_inputs, num_outputs, pass_bytes, tile_rows, num_panels, panel_bytes;

  // Rows that share each read of the weights, and panels of a task.
  std::size_t group_rows() const { return std::max(kGroupBytes / pass_bytes / tile_rows * tile_rows, tile_rows); }
  std::size_t run_panels() const { return (kTaskBytes + panel_bytes - 1) / panel_bytes; }

  // round(row) for each row.
  template <class Round>
  void round_rows(KernelCall& call, const Round& round) const {
    if (num_rows * num_inputs > kSerialRounded) return call.parallel_for(num_rows, round);
    for (std::size_t row = 0; row < num_rows; ++row) round(row);
  }

  // multiply(first_row, count, first_panel, last_panel): a group of rows times a run of panels; all rows of a group
  // share each read of the weights.
  template <class Multiply>
  void multiply(KernelCall& call, const Multiply& multiply) const {
    const bool is_serial = num_rows * num_inputs * num_outputs <= kSerialProducts;
    const std::size_t group = group_rows(), run = is_serial ? num_panels : run_panels();
    const std::size_t num_runs = (num_panels + run - 1) / run;
    const auto task = [&](std::size_t index) {
      const std::size_t first_row = index / num_runs * group, first = index % num_runs * run;
      multiply(first_row, std::min(group, num_rows - first_row), first, std::min(first + run, num_panels));
    };
    const std::size_t num_tasks = (num_rows + group - 1) / group * num_runs;
    if (num_tasks > 1) return call.parallel_for(num_tasks, task);
    task(0);
  }
};

}  // namespace reader_edge
