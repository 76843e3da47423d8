// rows (R, K) float, each times the matrix (J, K) of its own expert: rounded one by one, grouped by expert, cut up for
// threads. The bytes of experts that have no row are not read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "onnxruntime/kernel.h"
#include "products/expert_rows.h"
#include "products/row_tasks.h"

namespace reader_edge {

// Matrices: see LinearProduct.
template <class Matrices>
class ExpertProduct {
 public:
  ExpertProduct(const char* op, Matrices matrices) : op_(op), matrices_(std::move(matrices)) {}

  void compute(KernelCall& call) const {
    const auto rows = call.input<float>(0);
    const std::size_t num_inputs = matrices_.num_inputs(), num_outputs = matrices_.num_outputs();
    if (rows.sizes.size() != 2 || rows.size(1) != num_inputs) {
      throw std::invalid_argument(std::string(op_) + ": sizes of rows and matrices do not fit");
    }
    const std::size_t num_rows = rows.size(0);
    const ExpertRows sent = expert_rows(op_, call.input<std::int64_t>(1), num_rows, matrices_.num_matrices());
    float* const output = call.output<float>(0, {rows.sizes[0], static_cast<std::int64_t>(num_outputs)}).data;
    if (num_rows == 0) return;

    const RowTasks sizes{num_rows,              num_inputs,             num_outputs,           matrices_.pass_bytes(),
                         matrices_.tile_rows(), matrices_.num_panels(), matrices_.panel_bytes()};
    const auto rounded = matrices_.rows(sent.places.data(), num_rows);
    sizes.round_rows(call, [&](std::size_t index) {
      matrices_.round(rounded, index, rows.data + sent.places[index] * num_inputs, sent.experts[index]);
    });
    const std::vector<Task> tasks = tasks_of(sent, sizes);
    const auto multiply = [&](std::size_t index) {
      const Task& task = tasks[index];
      matrices_.multiply(rounded.from(task.rows.first, task.rows.count), task.rows.expert, task.first, task.last, output);
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
  static std::vector<Task> tasks_of(const ExpertRows& sent, const RowTasks& sizes) {
    const std::size_t most = sizes.group_rows(), run = sizes.run_panels();
    std::vector<Task> tasks;
    for (const ExpertRows::Group& group : sent.groups) {
      for (std::size_t row = 0; row < group.count; row += most) {
        const ExpertRows::Group rows{group.expert, group.first + row, std::min(most, group.count - row)};
        for (std::size_t panel = 0; panel < sizes.num_panels; panel += run) {
          tasks.push_back({rows, panel, std::min(panel + run, sizes.num_panels)});
        }
      }
    }
    return tasks;
  }

  const char* op_;
  Matrices matrices_;
};

}  // namespace reader_edge
