#include "kernels/products/unpacked_slice.h"

#include "kernels/products/row_tiles.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

static_assert(kPanelVectors == 2);

// The same of kRows rows from `row` on.
template <std::size_t kRows>
void multiply_rows(const BlockRows& rows, std::size_t row, const Slice& slice, const PanelOutputs& outputs) {
  Ints* const totals = slice.totals + row * kPanelVectors;
  Ints sums[kRows][kPanelVectors];
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) {
    sums[m][0] = totals[m * kPanelVectors];
    sums[m][1] = totals[m * kPanelVectors + 1];
  }
  RowPointers<kRows> values(rows.values + row * rows.stride + slice.first_block * kBlockInputs, rows.stride);
  const std::int8_t* w = slice.unpacked;
  const std::int8_t* ahead = slice.ahead;
  const std::size_t fetched = row == 0 ? kVector : 0;  // the first tile fetches for all
  for (std::size_t block = 0; block < slice.num_blocks; ++block) {
#pragma GCC unroll 8
    for (std::size_t four = 0; four < kBlockInputs / 4; ++four, w += kPanelVectors * kVector, ahead += fetched) {
      fetch_early(ahead);
      const Bytes w0 = load_bytes(w), w1 = load_bytes(w + kVector);
#pragma GCC unroll 12
      for (std::size_t m = 0; m < kRows; ++m) {
        const Bytes bytes = values.four(m, four * 4);
        add_dot_products(sums[m][0], w0, bytes);
        add_dot_products(sums[m][1], w1, bytes);
      }
    }
    values.advance(kBlockInputs);
  }
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) {
    if (slice.is_last) {
      outputs.store_row(rows.places[row + m], rows.scales[row + m], sums[m]);
    } else {
      totals[m * kPanelVectors] = sums[m][0];
      totals[m * kPanelVectors + 1] = sums[m][1];
    }
  }
}

}  // namespace

void multiply_slice(const BlockRows& rows, const Slice& slice, const PanelOutputs& outputs) {
  begin_totals(rows, slice);
  for_tiles<kUnpackedTile>(rows.count, [&](std::size_t row, auto height) {
    multiply_rows<height>(rows, row, slice, outputs);
  });
}

}  // namespace reader_edge::READER_EDGE_LANES
