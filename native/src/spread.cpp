#include "spread.h"

#include <cstring>
#include <stdexcept>

#include "kernels.h"
#include "scratch.h"

namespace reader_edge {
namespace {

constexpr std::size_t kLanes = 16;
constexpr std::size_t kSerialElements = 16 * 1024;  // fewer are not worth waking threads

bool is_hadamard(const float* matrix, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t j = 0; j < size; ++j) {
      if (matrix[i * size + j] != (__builtin_parityll(i & j) ? -1.0f : 1.0f)) return false;
    }
  }
  return true;
}

Tensor<const float> stretch_of(const KernelAttributes& attributes, std::size_t input, std::size_t rank) {
  auto stretch = attributes.constant<float>(input);
  if (stretch.sizes.size() != rank || stretch.count(0, rank) == 0) {
    throw std::invalid_argument(rank == 1 ? "Spread: its stretch needs one axis"
                                          : "Spread: its stretch needs two axes, experts and inputs");
  }
  return stretch;
}

}  // namespace

std::vector<Spread> spreads_of_experts(const KernelAttributes& attributes) {
  const Tensor<const float> stretch = stretch_of(attributes, 2, 2);
  std::vector<Spread> spreads{{stretch, attributes.constant<float>(3)}};
  for (std::size_t expert = 1; expert < stretch.size(0); ++expert) {
    spreads.push_back(spreads[0].with(stretch.data + expert * stretch.size(1)));
  }
  return spreads;
}

Spread::Spread(const KernelAttributes& attributes)
    : Spread(stretch_of(attributes, 1, 1), attributes.constant<float>(2)) {}

Spread::Spread(const Tensor<const float>& stretch, const Tensor<const float>& hadamard)
    : stretch_(stretch.data), num_inputs_(stretch.size(stretch.sizes.size() - 1)) {
  if (hadamard.sizes.size() != 2) throw std::invalid_argument("Spread: its matrix needs two axes");
  block_ = hadamard.size(0);
  const bool is_power = block_ != 0 && (block_ & (block_ - 1)) == 0;
  if (!is_power || block_ > kMaxBlock || num_inputs_ % block_ != 0 || hadamard.size(1) != block_ ||
      !is_hadamard(hadamard.data, block_)) {
    throw std::invalid_argument("Spread: its matrix is no Hadamard matrix of a size that divides the inputs");
  }
}

float Spread::apply(const float* row, float* spread) const {
  return kernels().spread.apply(row, stretch_, num_inputs_, block_, spread);
}

void SpreadRows::compute(KernelCall& call) const {
  const auto rows = call.input<float>(0);
  const std::size_t rank = rows.sizes.size(), num_inputs = spread_.num_inputs();
  if (rank == 0 || rows.size(rank - 1) != num_inputs) {
    throw std::invalid_argument("SpreadRows: sizes of rows and stretch do not fit");
  }
  float* const output = call.output<float>(0, rows.sizes).data;
  const std::size_t num_rows = rows.count(0, rank - 1);
  const auto spread_row = [&](std::size_t row) {
    thread_local Scratch scratch;
    float* const spread = scratch.take<float>(static_cast<std::int64_t>(num_inputs + kLanes));
    spread_.apply(rows.data + row * num_inputs, spread);
    std::memcpy(output + row * num_inputs, spread, num_inputs * sizeof(float));
  };
  if (num_rows * num_inputs <= kSerialElements) {
    for (std::size_t row = 0; row < num_rows; ++row) spread_row(row);
  } else {
    call.parallel_for(num_rows, spread_row);
  }
}

}  // namespace reader_edge
