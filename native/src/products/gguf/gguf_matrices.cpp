#include "products/gguf/gguf_matrices.h"

#include "kernels.h"
#include "machine/scratch.h"

namespace reader_edge {

std::size_t GgufMatrices::tile_rows() const { return kernels().gguf.tile_rows; }

GgufRows GgufMatrices::rows(const std::size_t* places, std::size_t count) const {
  thread_local Scratch kept_values;
  thread_local Scratch kept_scales, kept_sums;
  thread_local Scratch kept_offsets;
  const std::size_t num_blocks = weights_[0].num_blocks();
  const auto size = static_cast<std::int64_t>(count * num_blocks);
  return {kept_values.take<std::int8_t>(static_cast<std::int64_t>(count * row_bytes())),
          row_bytes(),
          kept_scales.take<float>(size),
          kept_offsets.take<std::int32_t>(size),
          kept_sums.take<float>(size),
          places,
          count,
          num_blocks};
}

void GgufMatrices::round(const GgufRows& rows, std::size_t index, const float* row, std::size_t matrix) const {
  kernels().gguf.round_blocks(row, weights_[matrix].type(), rows, index);
}

void GgufMatrices::multiply(const GgufRows& rows, std::size_t matrix, std::size_t first, std::size_t last,
                            float* output) const {
  const auto multiply = kernels().gguf.multiply_panel;
  for (std::size_t panel = first; panel < last; ++panel) multiply(rows, weights_[matrix], panel, output);
}

}  // namespace reader_edge
