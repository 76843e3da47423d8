// Cuts the rows of a matrix product into tiles whose height the compiler knows, so that all their sums have registers.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

namespace reader_edge::READER_EDGE_LANES {

template <class Tile, std::size_t... kBefore>
void call_tile(const Tile& tile, std::size_t row, std::size_t height, std::index_sequence<kBefore...>) {
  (void)((height == kBefore + 1 && (tile(row, std::integral_constant<std::size_t, kBefore + 1>{}), true)) || ...);
}

// tile(first_row, height) for tiles of at most kMaxHeight rows, of equal height, or nearly so; height is an
// std::integral_constant.
template <std::size_t kMaxHeight, class Tile>
void for_tiles(std::size_t num_rows, const Tile& tile) {
  std::size_t row = 0;
  for (std::size_t left = (num_rows + kMaxHeight - 1) / kMaxHeight; left > 0; --left) {
    const std::size_t height = (num_rows - row + left - 1) / left;
    call_tile(tile, row, height, std::make_index_sequence<kMaxHeight>{});
    row += height;
  }
}

}  // namespace reader_edge::READER_EDGE_LANES
