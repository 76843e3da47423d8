#include "products/output_constants.h"

#include <stdexcept>

namespace reader_edge {

const float* of_outputs(const KernelAttributes& attributes, std::size_t input, std::size_t num_outputs) {
  const auto constant = attributes.constant<float>(input);
  if (constant.sizes.size() != 1 || constant.size(0) != num_outputs) {
    throw std::invalid_argument("RowLinear: sizes of weight, scales and bias do not fit");
  }
  return constant.data;
}

void add_bias(const float* bias, std::size_t first, std::size_t last, const std::size_t* places, std::size_t num_rows,
              float* output, std::size_t stride) {
  for (std::size_t row = 0; row < num_rows; ++row) {
    float* const outputs = output + places[row] * stride;
    for (std::size_t j = first; j < last; ++j) outputs[j] += bias[j];
  }
}

}  // namespace reader_edge
