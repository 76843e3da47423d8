// Rows times unpacked 4-bit weights by AMX tiles: the sums of kernels/products/unpacked_slice.cpp.
#include "kernels/products/unpacked_slice.h"

#include <algorithm>

#include "kernels/amx/tile_steps.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

constexpr std::size_t kTotalsBytes = kPanelVectors * kVector;  // of a row

// `height` rows from `row` on, whose totals begin at what they are to begin with.
void add_slice(const BlockRows& rows, std::size_t row, std::size_t height, const Slice& slice, const Early& early) {
  Ints* const first = slice.totals + row * kPanelVectors;
  Ints* const second = first + kTileRows * kPanelVectors;
  const std::int8_t* const values = rows.values + row * rows.stride + slice.first_block * kBlockInputs;
  const bool has_second = height > kTileRows;
  load_tile<0>(first, kTotalsBytes);
  load_tile<1>(first + 1, kTotalsBytes);
  if (has_second) {
    load_tile<2>(second, kTotalsBytes);
    load_tile<3>(second + 1, kTotalsBytes);
  }
  const TileRows tile_rows{values, has_second ? values + kTileRows * rows.stride : nullptr, rows.stride};
  add_tile_steps<false>(tile_rows, slice.unpacked, (slice.num_blocks + 1) / 2, early);
  store_tile<0>(first, kTotalsBytes);
  store_tile<1>(first + 1, kTotalsBytes);
  if (has_second) {
    store_tile<2>(second, kTotalsBytes);
    store_tile<3>(second + 1, kTotalsBytes);
  }
}

}  // namespace

void multiply_slice(const BlockRows& rows, const Slice& slice, const PanelOutputs& outputs) {
  constexpr std::size_t kLines = kStepBytes / 2 / kVector;  // packed, of a step
  begin_totals(rows, slice);
  for (std::size_t row = 0; row < rows.count; row += 2 * kTileRows) {
    const std::size_t height = std::min(2 * kTileRows, rows.count - row), first = std::min(height, kTileRows);
    const Tiles tiles(first, height - first);
    add_slice(rows, row, height, slice, {slice.ahead, row == 0 ? kLines : 0, kStepBytes / 2});
  }
  for (std::size_t row = 0; row < rows.count && slice.is_last; ++row) {
    const Ints* const totals = slice.totals + row * kPanelVectors;
    outputs.store_row(rows.places[row], rows.scales[row], {totals[0], totals[1]});
  }
}

}  // namespace reader_edge::READER_EDGE_LANES
