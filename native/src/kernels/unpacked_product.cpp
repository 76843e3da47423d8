// A block's scale times a half less 8 is from -120 to 120: a byte. Of such bytes a row's sum takes one instruction for
// four inputs and 16 outputs, and nothing for a block; what they are kept too large by is taken out by the row's total.
#include "unpacked_product.h"

#include <cstddef>

#include "row_tiles.h"
#include "scratch.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

constexpr std::size_t kSliceBlocks = 20;  // unpacked at a time, at most: they and a tile's rows stay in 32 kB of cache
constexpr int kZero = 128;                // what is added to an unpacked weight, so that none is negative
constexpr std::size_t kUnpackedBytes = kBlockInputs * kPanelOutputs;  // of a block
static_assert(kPanelVectors == 2);

// A run of a panel's blocks, unpacked. ahead: packed weights to come. totals (R, kPanelVectors): the rows' sums so far.
struct Slice {
  const std::int8_t* unpacked;
  const std::int8_t* ahead;
  std::size_t first_block, num_blocks;
  bool is_last;
  Ints* totals;
};

// Blocks of packed weights to (inputs / 4, kPanelOutputs, 4) bytes, raised. Two bytes are multiplied as one
// number: neither is below 8 or above 248 in the end, so that the lower one takes nothing from the upper.
void unpack(const std::int8_t* packed, const std::int8_t* scales, std::size_t num_blocks, std::int8_t* unpacked) {
  constexpr int kBoth = 257;  // a byte twice
  const Bytes zero = all_words(static_cast<std::int16_t>(kZero * kBoth)), eights = all_words(8 * kBoth);
  for (std::size_t block = 0; block < num_blocks; ++block, scales += kPanelOutputs) {
    Bytes words[kPanelVectors], offsets[kPanelVectors];  // of each output: its scale twice, and what is added
    for (std::size_t i = 0; i < kPanelVectors; ++i) {
      words[i] = twice_in_words(widened(scales + i * kLanes));
      offsets[i] = zero - multiplied_words(words[i], eights);
    }
    for (std::size_t v = 0; v < kBlockBytes / 4; ++v, packed += kPanelVectors * kVector) {
      const UnpackedHalves halves(packed);
      for (const auto& half : halves.of) {
        for (std::size_t i = 0; i < kPanelVectors; ++i, unpacked += kVector) {
          store_bytes(unpacked, lowered(multiplied_words(half[i], words[i]) + offsets[i]));
        }
      }
    }
  }
}

// Adds kRows rows from `row` on times a slice to their totals, or to output where it is the last.
template <std::size_t kRows>
void multiply_slice(const BlockRows& rows, std::size_t row, const Slice& slice, const PanelOutputs& outputs) {
  Ints* const totals = slice.totals + row * kPanelVectors;
  Ints sums[kRows][kPanelVectors];
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) {
    const bool is_begun = slice.first_block > 0;
    sums[m][0] = is_begun ? totals[m * kPanelVectors] : all(rows.totals[row + m]);
    sums[m][1] = is_begun ? totals[m * kPanelVectors + 1] : sums[m][0];
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
        add_products(sums[m][0], w0, bytes);
        add_products(sums[m][1], w1, bytes);
      }
    }
    values.advance(kBlockInputs);
  }
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) {
    if (slice.is_last) {
      outputs.store_row(row + m, rows.scales[row + m], sums[m]);
    } else {
      totals[m * kPanelVectors] = sums[m][0];
      totals[m * kPanelVectors + 1] = sums[m][1];
    }
  }
}

}  // namespace

void multiply_unpacked(const BlockRows& rows, const BlockWeight& weight, std::size_t panel,
                       const PanelOutputs& outputs) {
  thread_local Scratch kept_bytes, kept_totals;
  const std::size_t totals_bytes = rows.count * kPanelVectors * kVector;
  std::int8_t* const unpacked = kept_bytes.take<std::int8_t>(kSliceBlocks * kUnpackedBytes);
  auto* const totals = reinterpret_cast<Ints*>(kept_totals.take<std::int8_t>(static_cast<std::int64_t>(totals_bytes)));
  const std::size_t num_blocks = weight.num_blocks();
  std::size_t first = 0;
  for (std::size_t left = (num_blocks + kSliceBlocks - 1) / kSliceBlocks; left > 0; --left) {
    const std::size_t count = (num_blocks - first + left - 1) / left;
    const std::int8_t* const packed = weight.values(panel) + first * kBlockBytes * kPanelOutputs;
    unpack(packed, weight.scales(panel) + first * kPanelOutputs, count, unpacked);
    const Slice slice{unpacked, packed + kWeightsAhead, first, count, left == 1, totals};
    for_tiles<kUnpackedTile>(rows.count, [&](std::size_t row, auto height) {
      multiply_slice<height>(rows, row, slice, outputs);
    });
    first += count;
  }
}

}  // namespace reader_edge::READER_EDGE_LANES
