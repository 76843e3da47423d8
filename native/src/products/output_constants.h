// A node's constants with one number for each output of its matrix product, such as the bias.
#pragma once

#include <cstddef>

#include "onnxruntime/kernel.h"

namespace reader_edge {

// Memory is the graph's: (J,). Throws where it has other sizes.
const float* of_outputs(const KernelAttributes& attributes, std::size_t input, std::size_t num_outputs);

// Added to outputs [first, last) of the rows of output (..., stride) at these places, while they are in a core's own cache.
void add_bias(const float* bias, std::size_t first, std::size_t last, const std::size_t* places, std::size_t num_rows,
              float* output, std::size_t stride);

}  // namespace reader_edge
