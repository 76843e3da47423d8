// The block types of GGUF files that products take as they are.
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

inline constexpr GgufType kQ4_0{"Q4_0Linear", 32, 4, 8, false, false, 1};
inline constexpr GgufType kQ4_1{"Q4_1Linear", 32, 4, 0, true, false, 1};
inline constexpr GgufType kQ5_0{"Q5_0Linear", 32, 5, 16, false, false, 1};
inline constexpr GgufType kQ5_1{"Q5_1Linear", 32, 5, 0, true, false, 1};
inline constexpr GgufType kQ8_0{"Q8_0Linear", 32, 8, 128, false, false, 1};
inline constexpr GgufType kQ4_K{"Q4_KLinear", 32, 4, 0, true, false, 8};
inline constexpr GgufType kQ5_K{"Q5_KLinear", 32, 5, 0, true, false, 8};
inline constexpr GgufType kQ6_K{"Q6_KLinear", 16, 6, 32, false, true, 16};

}  // namespace reader_edge
