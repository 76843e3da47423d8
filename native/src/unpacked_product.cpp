// A block's scale times a half less 8 is from -120 to 120: a byte. Of such bytes a row's sum takes one instruction for
// four inputs and 16 outputs, and nothing for a block; what they are kept too large by is taken out by the row's total.
#include "unpacked_product.h"

#include "row_tiles.h"
#include "scratch.h"

namespace reader_edge {
namespace {

constexpr std::size_t kSliceBlocks = 20;  // unpacked at a time, at most: they and a tile's rows stay in 32 kB of cache
constexpr std::size_t kUnpackedBytes = kBlockInputs * kPanelOutputs;  // of a block
static_assert(kPanelVectors == 2);

// A run of a panel's blocks, unpacked. ahead: packed weights to come. totals (R, kPanelVectors): the rows' sums so far.
struct Slice {
  const std::int8_t* unpacked;
  const std::int8_t* ahead;
  std::size_t first_block, num_blocks;
  bool is_last;
  __m512i* totals;
};

// Blocks of packed weights to (inputs / 4, kPanelOutputs, 4) bytes, kUnpackedZero added. Two bytes are multiplied as one
// number: neither is below 8 or above 248 in the end, so that the lower one takes nothing from the upper.
void unpack(const std::int8_t* packed, const std::int8_t* scales, std::size_t num_blocks, std::int8_t* unpacked) {
  constexpr int kBoth = 257;  // a byte twice
  const __m512i zero = _mm512_set1_epi16(static_cast<short>(kUnpackedZero * kBoth));
  const __m512i eights = _mm512_set1_epi16(8 * kBoth);
  for (std::size_t block = 0; block < num_blocks; ++block, scales += kPanelOutputs) {
    __m512i words[kPanelVectors], offsets[kPanelVectors];  // of each output: its scale twice, and what is added
    for (std::size_t i = 0; i < kPanelVectors; ++i) {
      const __m512i scale = block_scales(scales + i * kLanes);
      words[i] = _mm512_mask_blend_epi16(0xaaaaaaaa, scale, _mm512_slli_epi32(scale, 16));
      offsets[i] = _mm512_sub_epi16(zero, _mm512_mullo_epi16(words[i], eights));
    }
    for (std::size_t v = 0; v < kBlockBytes / 4; ++v, packed += kPanelVectors * kVector) {
      const UnpackedHalves halves(packed);
      for (const auto& half : halves.of) {
        for (std::size_t i = 0; i < kPanelVectors; ++i, unpacked += kVector) {
          _mm512_store_si512(unpacked, _mm512_add_epi16(_mm512_mullo_epi16(half[i], words[i]), offsets[i]));
        }
      }
    }
  }
}

// Adds kRows rows from `row` on times a slice to their totals, or to output where it is the last.
template <std::size_t kRows>
void multiply_slice(const BlockRows& rows, std::size_t row, const Slice& slice, const PanelOutputs& outputs) {
  __m512i* const totals = slice.totals + row * kPanelVectors;
  __m512i sums[kRows][kPanelVectors];
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) {
    const bool is_begun = slice.first_block > 0;
    sums[m][0] = is_begun ? totals[m * kPanelVectors] : _mm512_set1_epi32(rows.totals[row + m]);
    sums[m][1] = is_begun ? totals[m * kPanelVectors + 1] : sums[m][0];
  }
  RowPointers<kRows> values(rows.values + row * rows.stride + slice.first_block * kBlockInputs, rows.stride);
  const std::int8_t* w = slice.unpacked;
  const std::int8_t* ahead = slice.ahead;
  const std::size_t fetched = row == 0 ? kVector : 0;  // the first tile fetches for all
  for (std::size_t block = 0; block < slice.num_blocks; ++block) {
#pragma GCC unroll 8
    for (std::size_t four = 0; four < kBlockInputs / 4; ++four, w += kPanelVectors * kVector, ahead += fetched) {
      _mm_prefetch(ahead, _MM_HINT_T1);
      const __m512i w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + kVector);
#pragma GCC unroll 12
      for (std::size_t m = 0; m < kRows; ++m) {
        const __m512i bytes = values.four(m, four * 4);
        add_products(sums[m][0], w0, bytes);
        add_products(sums[m][1], w1, bytes);
      }
    }
    values.advance(kBlockInputs);
  }
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) {
    if (slice.is_last) {
      outputs.store(row + m, rows.scales[row + m], sums[m]);
    } else {
      totals[m * kPanelVectors] = sums[m][0];
      totals[m * kPanelVectors + 1] = sums[m][1];
    }
  }
}

}  // namespace

void multiply_unpacked(const BlockRows& rows, const BlockWeight& weight, std::size_t panel,
                       const PanelOutputs& outputs) {
  thread_local Scratch<std::int8_t> kept_bytes, kept_totals;
  const std::size_t totals_bytes = rows.count * kPanelVectors * kVector;
  std::int8_t* const unpacked = kept_bytes.take(kSliceBlocks * kUnpackedBytes);
  auto* const totals = reinterpret_cast<__m512i*>(kept_totals.take(static_cast<std::int64_t>(totals_bytes)));
  const std::size_t num_blocks = weight.num_blocks();
  std::size_t first = 0;
  for (std::size_t left = (num_blocks + kSliceBlocks - 1) / kSliceBlocks; left > 0; --left) {
    const std::size_t count = (num_blocks - first + left - 1) / left;
    const std::int8_t* const packed = weight.values(panel) + first * kBlockBytes * kPanelOutputs;
    unpack(packed, weight.scales(panel) + first * kPanelOutputs, count, unpacked);
    const Slice slice{unpacked, packed + kWeightsAhead, first, count, left == 1, totals};
    for_tiles<kMaxTileRows>(rows.count, [&](std::size_t row, auto height) {
      multiply_slice<height>(rows, row, slice, outputs);
    });
    first += count;
  }
}

}  // namespace reader_edge
