// rows (..., K) float times one matrix (J, K): each row rounded by its own scale, sums of integers, scaled back. All but
// the rows are constants of the graph, and looked up once: asking ONNX Runtime costs more than a small product.
#pragma once

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

#include "onnxruntime/kernel.h"
#include "products/distinct_rows.h"
#include "products/output_constants.h"
#include "products/row_tasks.h"

namespace reader_edge {

// Matrices (RowMatrices, BlockMatrices or GgufMatrices) has sizes (num_matrices,
// num_inputs, num_outputs), how rows and weights are read (pass_bytes, tile_rows, num_panels, panel_outputs, panel_bytes), and
//   Rows rows(places, count)                 room for rounded rows, in memory that a thread keeps from call to call
//   round(rows, index, row, matrix)          one of them
//   multiply(rows, matrix, first, last, output)   some of them times a run of panels, to their places
template <class Matrices>
class LinearProduct {
 public:
  // bias_input: of a bias (J,), added last; 0 without one.
  LinearProduct(const KernelAttributes& attributes, const char* op, Matrices matrices, std::size_t bias_input)
      : op_(op), matrices_(std::move(matrices)) {
    if (bias_input != 0) bias_ = of_outputs(attributes, bias_input, matrices_.num_outputs());
  }

  void compute(KernelCall& call) const {
    const auto rows = call.input<float>(0);
    const std::size_t rank = rows.sizes.size(), num_inputs = matrices_.num_inputs(), num_outputs = matrices_.num_outputs();
    if (rank == 0 || rows.size(rank - 1) != num_inputs) {
      throw std::invalid_argument(std::string(op_) + ": sizes of rows and weight do not fit");
    }
    auto sizes = rows.sizes;
    sizes.back() = static_cast<std::int64_t>(num_outputs);
    const std::size_t num_rows = rows.count(0, rank - 1);
    float* const output = call.output<float>(0, sizes).data;
    if (num_rows == 0) return;

    const DistinctRows distinct = distinct_rows(rows.data, num_rows, num_inputs);
    const RowTasks tasks{distinct.count,        num_inputs,             num_outputs,           matrices_.pass_bytes(),
                         matrices_.tile_rows(), matrices_.num_panels(), matrices_.panel_bytes()};
    const auto rounded = matrices_.rows(distinct.places, distinct.count);
    tasks.round_rows(call, [&](std::size_t index) {
      matrices_.round(rounded, index, rows.data + distinct.places[index] * num_inputs, 0);
    });
    tasks.multiply(call, [&](std::size_t first_row, std::size_t count, std::size_t first, std::size_t last) {
      matrices_.multiply(rounded.from(first_row, count), 0, first, last, output);
      const std::size_t begin = first * matrices_.panel_outputs();
      const std::size_t end = std::min(last * matrices_.panel_outputs(), num_outputs);
      if (bias_ != nullptr) add_bias(bias_, begin, end, distinct.places + first_row, count, output, num_outputs);
      distinct.repeat(first_row, count, begin, end, output, num_outputs);
    });
  }

 private:
  const char* op_;
  Matrices matrices_;
  const float* bias_ = nullptr;
};

}  // namespace reader_edge
