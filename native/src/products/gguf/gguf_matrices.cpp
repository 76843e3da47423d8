#include "products/gguf/gguf_matrices.h"

#include <algorithm>

#include "kernels.h"
#include "machine/scratch.h"

namespace reader_edge {

namespace {

std::size_t side_by_side() { return kernels().gguf.wide_panels; }

}  // namespace

// Many rows go chunk by chunk, but for bytes panel by panel.
std::size_t GgufMatrices::pass_bytes() const {
  const bool is_whole = side_by_side() == 1 && weights_[0].type().bits == 8;
  return is_whole ? num_inputs() : std::min(kGgufChunkInputs, num_inputs());
}

std::size_t GgufMatrices::tile_rows() const { return kernels().gguf.tile_rows; }

std::size_t GgufMatrices::num_panels() const {
  return (weights_[0].num_panels() + side_by_side() - 1) / side_by_side();
}

std::size_t GgufMatrices::panel_outputs() const { return kGgufOutputs * side_by_side(); }
std::size_t GgufMatrices::panel_bytes() const { return weights_[0].panel_bytes() * side_by_side(); }

GgufRows GgufMatrices::rows(const std::size_t* places, std::size_t count) const {
  thread_local Scratch kept_values;
  thread_local Scratch kept_scales, kept_sums;
  thread_local Scratch kept_offsets;
  const std::size_t num_blocks = weights_[0].num_blocks();
  const auto size = static_cast<std::int64_t>(count * num_blocks);
  return {kept_values.take<std::int8_t>(static_cast<std::int64_t>(count * num_inputs())),
          num_inputs(),
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
  const GgufWeight& weight = weights_[matrix];
  kernels().gguf.multiply(rows, weight, first * side_by_side(), std::min(last * side_by_side(), weight.num_panels()), output);
}

}  // namespace reader_edge
