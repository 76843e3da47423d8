// A block type of GGUF files that products take as they are; gguf_types.h has them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reader_edge {

// Blocks of `block_inputs` inputs, whose codes have `bits`. A weight is scale * (level - zero), or scale * level + minimum.
// Codes are levels themselves, or stand for one of 16 `levels`: below 32, or a whole byte where `zero` is 128. Scales and
// minima are numbers in fp16, one a block; where `super_block` is more than one, so many blocks share a number, and each
// has an integer that multiplies it. With `has_exponents` a scale is a power of two, in a byte that counts from -128 on.
struct GgufType {
  const char* name;
  std::size_t block_inputs, bits;
  int zero;
  bool has_minima, has_signed_codes;
  std::size_t super_block;
  bool has_exponents = false;
  const std::uint8_t* levels = nullptr;

  constexpr std::size_t number_bytes() const { return has_exponents ? 1 : 2; }  // of a scale, and of a minimum
  constexpr bool has_byte_levels() const { return zero == 128; }
  constexpr std::size_t qh_bits() const { return bits == 8 ? 0 : bits - 4; }
  constexpr std::size_t qs_bytes() const { return bits == 8 ? block_inputs : block_inputs / 2; }  // of an output's block
  constexpr std::size_t qh_bytes() const { return block_inputs * qh_bits() / 8; }
  constexpr bool has_super_blocks() const { return super_block > 1; }
  // rows, qs, [qh,] scales, [scale_codes,] [minima, [minimum_codes]]
  constexpr std::size_t num_inputs() const {
    return 2 + (qh_bits() > 0) + (1 + has_super_blocks()) * (1 + has_minima);
  }
};

template <const GgufType&... kTypes>
struct GgufTypes {};

}  // namespace reader_edge
