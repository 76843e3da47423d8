// How a node holds weights in the blocks of GGUF files: the types of its constant inputs by block type, and how they
// are read.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "onnxruntime/kernel.h"
#include "products/gguf/gguf_weight.h"
#include "products/matrix_place.h"

namespace reader_edge {

// qs (J, blocks, bytes), [qh (J, blocks, bytes),] scales (J, blocks or fewer), [scale_codes (J, blocks),]
// [minima, likewise, [minimum_codes]]; with an axis of experts before them where they are stacked.
std::vector<GgufWeight> gguf_weights(const KernelAttributes& attributes, const GgufType& type, const MatrixPlace& place);

// Types of the inputs of a node that has kFirst others before them; the first of all are its rows.
template <const GgufType& kType, std::size_t kFirst>
constexpr auto gguf_input_types() {
  std::array<ort::ElementType, kFirst + kType.num_inputs() - 1> types{ort::kFloat};
  std::size_t i = kFirst;
  types[i++] = ort::kUInt8;
  if (kType.qh_bits() > 0) types[i++] = ort::kUInt8;
  while (i < types.size()) {
    types[i++] = kType.has_exponents ? ort::kUInt8 : ort::kFloat16;
    if (kType.has_super_blocks()) types[i++] = kType.has_signed_codes ? ort::kInt8 : ort::kUInt8;
  }
  return types;
}

}  // namespace reader_edge
