// Rows of bytes times int8 weights by AMX tiles: the sums of kernels/products/row_product.cpp, of weights packed in the
// order of tiles. A few rows read them as vectors, each of which holds four inputs of 16 outputs.
#include "products/rows/row_product.h"

#include <algorithm>

#include "kernels/amx/tile_steps.h"
#include "kernels/products/block_lanes.h"
#include "kernels/products/row_tiles.h"
#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

constexpr PackedLayout kLayout{kPanelOutputs, 4, kStepInputs};
constexpr std::size_t kLeastTileRows = 4;       // of bytes: fewer wait for memory either way, and vectors wait less
constexpr std::size_t kLeastAhead = 16 * 1024;  // weights are fetched this many bytes early, or a block of them
constexpr std::size_t kUnrolled = 4;            // groups of four inputs
static_assert(kPanelVectors == 2 && kUnsignedOffset == 128);

// What is multiplied: rows of `planes` rows of bytes each, and a block of the weight.
struct Block {
  const std::int8_t* values;
  const std::int8_t* ahead;
  std::size_t num_chunks;
  Ints corrections[kPanelVectors];  // what raised rows added to the sums
  PanelOutputs outputs;

  Block(const PackedWeight& weight, std::size_t index, const float* scales, float* output)
      : values(weight.block(index)),
        ahead(values + std::max(weight.block_bytes(), kLeastAhead)),
        num_chunks(weight.num_chunks()),
        corrections{shifted_left<7>(load(weight.sums(index))), shifted_left<7>(load(weight.sums(index) + kLanes))},
        outputs(output, weight.num_outputs(), index, scales) {}

  // The sums of a row, and of its second plane where it has one.
  void store_row(const QuantizedRows& rows, std::size_t row, const Ints* sums, const Ints* low) const {
    const std::size_t place = rows.places[row];
    const Ints high[kPanelVectors] = {sums[0] - corrections[0], sums[1] - corrections[1]};
    if (low == nullptr) return outputs.store_row(place, rows.scales[row], high);
    outputs.store_row(place, rows.scales[row], high, {low[0] - corrections[0], low[1] - corrections[1]});
  }
};

// kByteRows rows of bytes, all there are, with their sums in registers: GCC 12 keeps them in memory where this is inline.
template <std::size_t kByteRows>
[[gnu::noinline]] void multiply_few(const QuantizedRows& rows, const Block& block) {
  RowPointers<kByteRows> values(reinterpret_cast<const std::int8_t*>(rows.values), rows.stride);
  Ints sums[kByteRows][kPanelVectors];
#pragma GCC unroll 3
  for (std::size_t m = 0; m < kByteRows; ++m) sums[m][0] = sums[m][1] = all(0);
  const std::int8_t* w = block.values;
  const std::int8_t* ahead = block.ahead;
  for (std::size_t chunk = 0; chunk < block.num_chunks; chunk += kUnrolled) {
#pragma GCC unroll 4
    for (std::size_t four = 0; four < kUnrolled; ++four, w += kGroupBytes, ahead += kGroupBytes) {
      const Bytes w0 = load_bytes(w), w1 = load_bytes(w + kVector);
      fetch_early(ahead);
      fetch_early(ahead + kVector);
#pragma GCC unroll 3
      for (std::size_t m = 0; m < kByteRows; ++m) {
        const Bytes bytes = values.four(m, four * 4);
        add_dot_products(sums[m][0], bytes, w0);
        add_dot_products(sums[m][1], bytes, w1);
      }
    }
    values.advance(kUnrolled * 4);
  }
  Ints totals[kByteRows][kPanelVectors];
#pragma GCC unroll 3
  for (std::size_t m = 0; m < kByteRows; ++m) totals[m][0] = sums[m][0], totals[m][1] = sums[m][1];
  for (std::size_t row = 0; row < rows.count; ++row) {
    const std::size_t m = row * rows.num_planes;
    block.store_row(rows, row, totals[m], rows.num_planes == 2 ? totals[m + 1] : nullptr);
  }
}

// `height` rows from `row` on, in tiles.
void multiply_many(const QuantizedRows& rows, std::size_t row, std::size_t height, const Block& block,
                   const Early& early) {
  alignas(64) std::int32_t sums[2 * kTileRows][kPanelOutputs];  // of the first tile's rows and the second's
  const std::size_t stride = rows.stride * rows.num_planes;
  const std::uint8_t* const first = rows.values + row * stride;
  const std::uint8_t* const others = rows.num_planes == 2 ? first + rows.stride : first + kTileRows * stride;
  const bool has_second = rows.num_planes == 2 || height > kTileRows;
  zero_tile<0>();
  zero_tile<1>();
  if (has_second) zero_tile<2>(), zero_tile<3>();
  add_tile_steps<true>({first, has_second ? others : nullptr, stride}, block.values, block.num_chunks * 4 / kStepInputs,
                       early);
  store_tile<0>(sums[0], sizeof sums[0]);
  store_tile<1>(sums[0] + kLanes, sizeof sums[0]);
  if (has_second) {
    store_tile<2>(sums[kTileRows], sizeof sums[0]);
    store_tile<3>(sums[kTileRows] + kLanes, sizeof sums[0]);
  }
  for (std::size_t m = 0; m < height; ++m) {
    const Ints high[] = {load(sums[m]), load(sums[m] + kLanes)};
    if (rows.num_planes == 1) {
      block.store_row(rows, row + m, high, nullptr);
    } else {
      const Ints low[] = {load(sums[kTileRows + m]), load(sums[kTileRows + m] + kLanes)};
      block.store_row(rows, row + m, high, low);
    }
  }
}

void multiply_blocks(const QuantizedRows& rows, const PackedWeight& weight, std::size_t first, std::size_t last,
                     const float* scales, float* output) {
  const std::size_t byte_rows = rows.count * rows.num_planes;
  if (byte_rows < kLeastTileRows) {
    for (std::size_t index = first; index < last; ++index) {
      const Block block(weight, index, scales, output);
      for_tiles<kLeastTileRows - 1>(byte_rows, [&](std::size_t, auto height) { multiply_few<height>(rows, block); });
    }
    return;
  }
  // Runs of rows of one height, so that tiles are configured once: the last begins a little early.
  const std::size_t most = 2 * kTileRows / rows.num_planes, num_runs = (rows.count + most - 1) / most;
  const std::size_t height = (rows.count + num_runs - 1) / num_runs, lines = kStepBytes / kVector;
  const std::size_t first_rows = std::min(height, kTileRows);
  const Tiles tiles(first_rows, rows.num_planes == 2 ? height : height - first_rows);
  for (std::size_t index = first; index < last; ++index) {
    const Block block(weight, index, scales, output);
    for (std::size_t run = 0; run < num_runs; ++run) {  // together they fetch a later block
      const std::size_t begin = lines * run / num_runs, end = lines * (run + 1) / num_runs;
      const Early early{block.ahead + begin * kVector, end - begin, kStepBytes};
      multiply_many(rows, std::min(run * height, rows.count - height), height, block, early);
    }
  }
}

}  // namespace

extern const RowKernels row_kernels{2 * kTileRows, kLayout, multiply_blocks};

}  // namespace reader_edge::READER_EDGE_LANES
