#include "rounding/hadamard.h"

#include <cstring>
#include <stdexcept>

#include "kernels.h"
#include "machine/scratch.h"

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

Tensor<const float> smoothing_of(const KernelAttributes& attributes, std::size_t input, std::size_t rank) {
  auto smoothing = attributes.constant<float>(input);
  if (smoothing.sizes.size() != rank || smoothing.count(0, rank) == 0) {
    throw std::invalid_argument(rank == 1 ? "Hadamard rotation: its smoothing scales need one axis"
                                          : "Hadamard rotation: its smoothing scales need two axes, experts and inputs");
  }
  return smoothing;
}

}  // namespace

std::vector<HadamardRotation> rotations(const KernelAttributes& attributes, std::size_t first, bool is_stacked) {
  const Tensor<const float> smoothing = smoothing_of(attributes, first, 1 + is_stacked);
  std::vector<HadamardRotation> rotations{{smoothing, attributes.constant<float>(first + 1)}};
  for (std::size_t expert = 1; is_stacked && expert < smoothing.size(0); ++expert) {
    rotations.push_back(rotations[0].with(smoothing.data + expert * smoothing.size(1)));
  }
  return rotations;
}

HadamardRotation::HadamardRotation(const KernelAttributes& attributes)
    : HadamardRotation(smoothing_of(attributes, 1, 1), attributes.constant<float>(2)) {}

HadamardRotation::HadamardRotation(const Tensor<const float>& smoothing, const Tensor<const float>& hadamard)
    : smoothing_(smoothing.data), num_inputs_(smoothing.size(smoothing.sizes.size() - 1)) {
  if (hadamard.sizes.size() != 2) throw std::invalid_argument("Hadamard rotation: its matrix needs two axes");
  block_ = hadamard.size(0);
  const bool is_power = block_ != 0 && (block_ & (block_ - 1)) == 0;
  if (!is_power || block_ > kMaxBlock || num_inputs_ % block_ != 0 || hadamard.size(1) != block_ ||
      !is_hadamard(hadamard.data, block_)) {
    throw std::invalid_argument("Hadamard rotation: its matrix is no Hadamard matrix of a size that divides the inputs");
  }
}

float HadamardRotation::apply(const float* row, float* rotated) const {
  return kernels().hadamard.apply(row, smoothing_, num_inputs_, block_, rotated);
}

void SpreadRows::compute(KernelCall& call) const {
  const auto rows = call.input<float>(0);
  const std::size_t rank = rows.sizes.size(), num_inputs = rotation_.num_inputs();
  if (rank == 0 || rows.size(rank - 1) != num_inputs) {
    throw std::invalid_argument("SpreadRows: sizes of rows and smoothing do not fit");
  }
  float* const output = call.output<float>(0, rows.sizes).data;
  const std::size_t num_rows = rows.count(0, rank - 1);
  const auto rotate_row = [&](std::size_t row) {
    thread_local Scratch scratch;
    float* const rotated = scratch.take<float>(static_cast<std::int64_t>(num_inputs + kLanes));
    rotation_.apply(rows.data + row * num_inputs, rotated);
    std::memcpy(output + row * num_inputs, rotated, num_inputs * sizeof(float));
  };
  if (num_rows * num_inputs <= kSerialElements) {
    for (std::size_t row = 0; row < num_rows; ++row) rotate_row(row);
  } else {
    call.parallel_for(num_rows, rotate_row);
  }
}

}  // namespace reader_edge
