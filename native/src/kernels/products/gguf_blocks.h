// Weights in the blocks of GGUF files as tiles read them: a block's levels, and its scale and minimum as numbers. Of each
// block type, what decides on that is known when a tile is compiled.
#pragma once

#include "lanes/lanes.h"
#include "products/gguf/gguf_weight.h"

namespace reader_edge::READER_EDGE_LANES {

constexpr std::size_t kAhead = 16 * 1024;  // weights are fetched this many bytes early
constexpr std::size_t kMaxBlocks = 16;     // of a chunk

inline Floats halves_at(const std::int8_t* place) { return load_halves(reinterpret_cast<const std::uint16_t*>(place)); }

// 2^(e - 128) of bytes e; below the least normal number the bits are others.
inline Floats powers_at(const std::int8_t* place) {
  const Ints e = widened(reinterpret_cast<const std::uint8_t*>(place));
  return bits_of(max(shifted_left<23>(e - all(1)), shifted_left<21>(e + all(1))));
}

// How a block type has its scales and minima: a number of fp16 for each block, a power of two, or codes of blocks that
// share a number.
enum class Numbers { kHalves, kPowers, kShared };

// What a type is to a tile. kSumBits: of the largest level.
template <std::size_t kTheInputs, std::size_t kTheBits, bool kIsWithMinima, Numbers kTheNumbers = Numbers::kHalves,
          std::size_t kLevelBits = 0>
struct Form {
  static constexpr std::size_t kInputs = kTheInputs, kBits = kTheBits, kSumBits = kLevelBits > 0 ? kLevelBits : kTheBits;
  static constexpr std::size_t kBlockBytes = kInputs * kBits / 8 * kGgufOutputs, kChunkBlocks = kGgufChunkInputs / kInputs;
  static constexpr bool kHasMinima = kIsWithMinima, kHasLevels = kLevelBits > 0;
  static constexpr Numbers kNumbers = kTheNumbers;
};

// Scales and minima of a chunk of `count` blocks as numbers: each is exact.
template <class Form>
class ChunkNumbers {
 public:
  ChunkNumbers(const std::int8_t* chunk, std::size_t count) : chunk_(chunk), count_(count) {
    if constexpr (kIsShared) {
      shared_scale_ = halves_at(chunk);
      if constexpr (Form::kHasMinima) shared_minimum_ = halves_at(chunk + kNumberBytes);
      chunk_ += kNumberBytes * (1 + Form::kHasMinima);
    }
  }

  [[gnu::always_inline]] Floats scale(std::size_t block) const {
    if constexpr (kIsShared) return shared_scale_ * codes_at(chunk_ + block * kGgufOutputs);
    if constexpr (Form::kNumbers == Numbers::kPowers) return powers_at(chunk_ + block * kGgufOutputs);
    return halves_at(chunk_ + block * kNumberBytes);
  }
  // The scale again where there are none.
  [[gnu::always_inline]] Floats minimum(std::size_t block) const {
    if constexpr (!Form::kHasMinima) return scale(block);
    if constexpr (kIsShared) return shared_minimum_ * codes_at(chunk_ + (count_ + block) * kGgufOutputs);
    return halves_at(chunk_ + (count_ + block) * kNumberBytes);
  }

 private:
  static constexpr bool kIsShared = Form::kNumbers == Numbers::kShared;
  static constexpr std::size_t kNumberBytes = 2 * kGgufOutputs;

  // Codes have a sign where no minimum makes up for one.
  static Floats codes_at(const std::int8_t* place) {
    if constexpr (Form::kHasMinima) return number_of(widened(reinterpret_cast<const std::uint8_t*>(place)));
    return number_of(widened(place));
  }

  const std::int8_t* chunk_;
  std::size_t count_;
  Floats shared_scale_, shared_minimum_;
};

// A block's levels, four inputs of each output to a vector.
template <class Form>
[[gnu::always_inline]] inline void load_levels(const std::int8_t* block, Bytes table, Bytes (&codes)[Form::kInputs / 4]) {
  constexpr std::size_t kInputs = Form::kInputs, kBits = Form::kBits;
  constexpr std::size_t kGroups = kInputs / 4, kVectors = kBits == 8 ? kGroups : kGroups / 2;
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kVectors; ++v) {
    fetch_early(block + v * kVector + kAhead);
    const Bytes packed = load_bytes(block + v * kVector);
    if constexpr (kBits == 8) {
      codes[v] = lowered(packed);
    } else {
      codes[v] = low_halves(packed);
      codes[v + kVectors] = high_halves(packed);
    }
    if constexpr (Form::kHasLevels) {
      codes[v] = looked_up(table, codes[v]);
      codes[v + kVectors] = looked_up(table, codes[v + kVectors]);
      if constexpr (Form::kSumBits == 8) codes[v] = lowered(codes[v]), codes[v + kVectors] = lowered(codes[v + kVectors]);
    }
  }
  if constexpr (kBits == 5 || kBits == 6) {
    const auto* const masks = reinterpret_cast<const std::uint64_t*>(block + kVectors * kVector);
    fetch_early(reinterpret_cast<const std::int8_t*>(masks) + kAhead);
#pragma GCC unroll 8
    for (std::size_t g = 0; g < kGroups; ++g) {
      codes[g] = added_where(masks[g], codes[g], 16);
      if constexpr (kBits == 6) codes[g] = added_where(masks[kGroups + g], codes[g], 32);
    }
  }
}

}  // namespace reader_edge::READER_EDGE_LANES
