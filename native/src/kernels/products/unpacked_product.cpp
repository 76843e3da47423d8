// Unpacks 4-bit weights to bytes with their block's scale multiplied in: a scale times a half less 8 is from -120 to
// 120. Then four inputs of 16 outputs take one instruction, and a block none; what the bytes are kept too large by is
// taken out by the row's total.
#include "kernels/products/unpacked_product.h"

#include <algorithm>
#include <cstddef>

#include "kernels/products/unpacked_slice.h"
#include "machine/scratch.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

constexpr int kZero = 128;                // what is added to an unpacked weight, so that none is negative
constexpr std::size_t kUnpackedBytes = kBlockInputs * kPanelOutputs;  // of a block
static_assert(kPanelVectors == 2 && kSliceBlocks % 2 == 0);

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
    const std::size_t pairs = ((num_blocks - first + left - 1) / left + 1) / 2, count = std::min(2 * pairs, num_blocks - first);
    const std::int8_t* const packed = weight.values(panel) + first * kBlockBytes * kPanelOutputs;
    unpack(packed, weight.scales(panel) + first * kPanelOutputs, count, unpacked);
    if (count % 2 == 1) std::fill_n(unpacked + count * kUnpackedBytes, kUnpackedBytes, std::int8_t{0});
    multiply_slice(rows, {unpacked, packed + kWeightsAhead, first, count, left == 1, totals}, outputs);
    first += count;
  }
}

}  // namespace reader_edge::READER_EDGE_LANES
