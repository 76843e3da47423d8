// rows (R, K) float, each times the matrix (J, K) of its own expert: rounded one by one, grouped by expert, cut up for
// threads. The bytes of experts that have no row are not read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "experts/expert_rows.h"
#include "onnxruntime/kernel.h"
#include "products/row_tasks.h"

namespace reader_edge {

// Matrices has kName, sizes (num_experts, num_inputs, num_outputs), how rows and weights are read (row_bytes, tile_rows,
// num_panels, panel_bytes), and
//   Rows rows(places, count)                                      room for rounded rows, for as long as the call lasts
//   round(rows, index, row, expert)                               one of them
//   multiply(rows, first_row, count, expert, first, last, output) some of them times a run of panels, to their places
template <class Matrices>
class ExpertProduct {
 public:
  explicit ExpertProduct(const KernelAttributes& attributes) : matrices_(attributes) {}

  void compute(KernelCall& call) const {
    const auto rows = call.input<float>(0);
    const std::size_t num_inputs = matrices_.num_inputs(), num_outputs = matrices_.num_outputs();
    if (rows.sizes.size() != 2 || rows.size(1) != num_inputs) {
      throw std::invalid_argument(std::string(Matrices::kName) + ": sizes of rows and matrices do not fit");
    }
    const std::size_t num_rows = rows.size(0);
    const ExpertRows sent = expert_rows(Matrices::kName, call.input<std::int64_t>(1), num_rows, matrices_.num_experts());
    float* const output = call.output<float>(0, {rows.sizes[0], static_cast<std::int64_t>(num_outputs)}).data;
    if (num_rows == 0) return;

    const auto rounded = matrices_.rows(sent.places.data(), num_rows);
    const auto round = [&](std::size_t index) {
      matrices_.round(rounded, index, rows.data + sent.places[index] * num_inputs, sent.experts[index]);
    };
    if (num_rows * num_inputs > RowTasks::kSerialRounded) {
      call.parallel_for(num_rows, round);
    } else {
      for (std::size_t row = 0; row < num_rows; ++row) round(row);
    }

    const std::vector<Task> tasks = tasks_of(sent);
    const auto multiply = [&](std::size_t index) {
      const Task& task = tasks[index];
      matrices_.multiply(rounded, task.rows.first, task.rows.count, task.rows.expert, task.first, task.last, output);
    };
    if (num_rows * num_inputs * num_outputs > RowTasks::kSerialProducts) return call.parallel_for(tasks.size(), multiply);
    for (std::size_t index = 0; index < tasks.size(); ++index) multiply(index);
  }

 private:
  struct Task {
    ExpertRows::Group rows;
    std::size_t first, last;  // panels
  };

  // As RowTasks cuts up one product.
  std::vector<Task> tasks_of(const ExpertRows& sent) const {
    const std::size_t tile_rows = matrices_.tile_rows(), num_panels = matrices_.num_panels();
    const std::size_t most = std::max(RowTasks::kGroupBytes / matrices_.row_bytes() / tile_rows * tile_rows, tile_rows);
    const std::size_t run = (RowTasks::kTaskBytes + matrices_.panel_bytes() - 1) / matrices_.panel_bytes();
    std::vector<Task> tasks;
    for (const ExpertRows::Group& group : sent.groups) {
      for (std::size_t row = 0; row < group.count; row += most) {
        const ExpertRows::Group rows{group.expert, group.first + row, std::min(most, group.count - row)};
        for (std::size_t panel = 0; panel < num_panels; panel += run) {
          tasks.push_back({rows, panel, std::min(panel + run, num_panels)});
        }
      }
    }
    return tasks;
  }

  Matrices matrices_;
};

}  // namespace reader_edge
