// A block type of GGUF files that products take as they are; gguf_types.h has them.
#pragma once

#include <cstddef>

namespace reader_edge {

// Blocks of `block_inputs` inputs, whose codes have `bits`. A weight is scale * (code - zero), or scale * code + minimum.
// Scales and minima are numbers in fp16, one a block; where `nested` is more than one, so many blocks share a number,
// and each has an integer that multiplies it.
struct GgufType {
  const char* name;
  std::size_t block_inputs, bits;
  int zero;
  bool has_minima, has_signed_codes;
  std::size_t nested;

  constexpr std::size_t high_bits() const { return bits == 8 ? 0 : bits - 4; }
  constexpr std::size_t value_bytes() const { return bits == 8 ? block_inputs : block_inputs / 2; }  // of an output's block
  constexpr std::size_t high_bytes() const { return block_inputs * high_bits() / 8; }
  constexpr bool is_nested() const { return nested > 1; }
  // rows, values, [highs,] scales, [scale_codes,] [minima, [minimum_codes]]
  constexpr std::size_t num_inputs() const {
    return 2 + (high_bits() > 0) + (1 + is_nested()) * (1 + has_minima);
  }
};

template <const GgufType&... kTypes>
struct GgufTypes {};

}  // namespace reader_edge
