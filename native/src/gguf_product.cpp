// Unsigned codes times the signed bytes of a row, four to a lane, add up to integers: a block's sum is exact. Blocks are
// combined in fp32, one after another from the first, each by the same two or three operations: their scales are numbers
// in fp16 and of a row, which no integer holds, so that the order is what keeps a row's bits at every width.
#include "gguf_product.h"

#include <immintrin.h>

#include <algorithm>
#include <utility>

#include "shared_constants.h"

namespace reader_edge {
namespace {

constexpr std::size_t kVector = 64;
constexpr std::size_t kAhead = 16 * 1024;  // weights are fetched this many bytes early
constexpr std::size_t kMaxBlocks = 16;        // of a chunk

// The instruction itself, its four bytes of a row read in every lane.
inline void add_products(__m512i& sum, __m512i codes, const std::int8_t* values) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*reinterpret_cast<const std::int32_t*>(values)));
}

// Scales and minima of a chunk as numbers: each is exact.
struct ChunkScales {
  alignas(64) float scales[kMaxBlocks * kGgufOutputs];
  alignas(64) float minima[kMaxBlocks * kGgufOutputs];
};

__m512 halves_at(const std::int8_t* place) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(place)));
}

__m512 codes_at(const std::int8_t* place, bool is_signed) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(place));
  return _mm512_cvtepi32_ps(is_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
}

// One kind of them, numbers at `halves` and codes at `codes`.
void widen(const GgufType& type, const std::int8_t* halves, const std::int8_t* codes, std::size_t count, float* out) {
  const __m512 shared = halves_at(halves);
  for (std::size_t b = 0; b < count; ++b) {
    const __m512 number = type.is_nested() ? _mm512_mul_ps(shared, codes_at(codes + b * kGgufOutputs, type.has_signed_codes))
                                           : halves_at(halves + 2 * b * kGgufOutputs);
    _mm512_store_ps(out + b * kGgufOutputs, number);
  }
}

void widen_chunk(const GgufType& type, const std::int8_t* chunk, std::size_t count, ChunkScales& out) {
  const std::size_t numbers = type.is_nested() ? 1 : count, bytes = 2 * numbers * kGgufOutputs;
  const std::int8_t* const codes = chunk + bytes * (1 + type.has_minima);
  widen(type, chunk, codes, count, out.scales);
  if (type.has_minima) widen(type, chunk + bytes, codes + count * kGgufOutputs, count, out.minima);
}

// A block's codes, four inputs of each output to a vector.
template <std::size_t kInputs, std::size_t kBits>
[[gnu::always_inline]] inline void load_codes(const std::int8_t* block, __m512i (&codes)[kInputs / 4]) {
  constexpr std::size_t kGroups = kInputs / 4, kVectors = kBits == 8 ? kGroups : kGroups / 2;
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kVectors; ++v) {
    _mm_prefetch(block + v * kVector + kAhead, _MM_HINT_T1);
    const __m512i packed = _mm512_load_si512(block + v * kVector);
    if constexpr (kBits == 8) {
      codes[v] = packed;
    } else {
      codes[v] = _mm512_and_si512(packed, _mm512_set1_epi8(0x0f));
      codes[v + kVectors] = _mm512_and_si512(_mm512_srli_epi16(packed, 4), _mm512_set1_epi8(0x0f));
    }
  }
  if constexpr (kBits == 5 || kBits == 6) {
    const auto* const masks = reinterpret_cast<const std::uint64_t*>(block + kVectors * kVector);
    _mm_prefetch(reinterpret_cast<const std::int8_t*>(masks) + kAhead, _MM_HINT_T1);
#pragma GCC unroll 8
    for (std::size_t g = 0; g < kGroups; ++g) {
      codes[g] = _mm512_mask_add_epi8(codes[g], masks[g], codes[g], _mm512_set1_epi8(16));
      if constexpr (kBits == 6) {
        codes[g] = _mm512_mask_add_epi8(codes[g], masks[kGroups + g], codes[g], _mm512_set1_epi8(32));
      }
    }
  }
}

// A block of kCount rows, added to their totals, whose sums grow side by side: each waits for its last instruction. More
// than registers hold, which costs less than a few rows at a time. The order of these operations is a promise.
template <std::size_t kInputs, bool kHasMinima, std::size_t kCount>
[[gnu::always_inline]] inline void add_block(__m512* totals, const __m512i (&codes)[kInputs / 4], __m512 scale,
                                             __m512 minimum, const GgufRows& rows, std::size_t row, std::size_t block) {
  const std::int8_t* const values = rows.values + row * rows.stride + block * kInputs;
  const std::size_t at = row * rows.num_blocks + block, stride = rows.num_blocks;
  __m512i sums[kCount];
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kCount; ++m) {
    sums[m] = kHasMinima ? _mm512_setzero_si512() : _mm512_set1_epi32(rows.offsets[at + m * stride]);
  }
#pragma GCC unroll 8
  for (std::size_t g = 0; g < kInputs / 4; ++g) {
#pragma GCC unroll 12
    for (std::size_t m = 0; m < kCount; ++m) add_products(sums[m], codes[g], values + m * rows.stride + g * 4);
  }
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kCount; ++m) {
    const __m512 sum = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[m]), _mm512_set1_ps(rows.scales[at + m * stride]));
    totals[m] = _mm512_fmadd_ps(scale, sum, totals[m]);
    if constexpr (kHasMinima) {
      totals[m] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(rows.sums[at + m * stride]), totals[m]);
    }
  }
}

// kRows rows from `row` on times a panel, all sums in registers.
template <std::size_t kInputs, std::size_t kBits, bool kHasMinima, std::size_t kRows>
void multiply_tile(const GgufRows& rows, std::size_t row, const GgufWeight& weight, const std::int8_t* chunk,
                   __mmask16 outputs, float* output) {
  __m512 totals[kRows];
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) totals[m] = _mm512_setzero_ps();
  for (std::size_t first = 0; first < rows.num_blocks; first += kGgufChunkInputs / kInputs) {
    const std::size_t count = std::min(kGgufChunkInputs / kInputs, rows.num_blocks - first);
    const std::size_t scale_bytes = weight.scale_bytes(count);
    for (std::size_t i = 0; i < scale_bytes; i += kVector) _mm_prefetch(chunk + i + kAhead, _MM_HINT_T1);
    ChunkScales numbers;
    widen_chunk(weight.type(), chunk, count, numbers);
    chunk += scale_bytes;
    for (std::size_t b = 0; b < count; ++b, chunk += weight.block_bytes()) {
      __m512i codes[kInputs / 4];
      load_codes<kInputs, kBits>(chunk, codes);
      const __m512 scale = _mm512_load_ps(numbers.scales + b * kGgufOutputs);
      const __m512 minimum = kHasMinima ? _mm512_load_ps(numbers.minima + b * kGgufOutputs) : scale;
      add_block<kInputs, kHasMinima, kRows>(totals, codes, scale, minimum, rows, row, first + b);
    }
  }
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) {
    _mm512_mask_storeu_ps(output + (row + m) * weight.num_outputs(), outputs, totals[m]);
  }
}

using Tile = decltype(&multiply_tile<32, 4, false, 1>);

template <std::size_t kInputs, std::size_t kBits, bool kHasMinima, std::size_t... kBefore>
Tile tile_of(std::size_t num_rows, std::index_sequence<kBefore...>) {
  static constexpr Tile kTiles[] = {multiply_tile<kInputs, kBits, kHasMinima, kBefore + 1>...};
  return kTiles[num_rows - 1];
}

Tile tile_of(const GgufType& type, std::size_t num_rows) {
  constexpr auto kHeights = std::make_index_sequence<kGgufTileRows>();
  if (type.bits == 8) return tile_of<32, 8, false>(num_rows, kHeights);
  if (type.bits == 6) return tile_of<16, 6, false>(num_rows, kHeights);
  if (type.bits == 5) {
    return type.has_minima ? tile_of<32, 5, true>(num_rows, kHeights) : tile_of<32, 5, false>(num_rows, kHeights);
  }
  return type.has_minima ? tile_of<32, 4, true>(num_rows, kHeights) : tile_of<32, 4, false>(num_rows, kHeights);
}

}  // namespace

void round_blocks(const float* row, const GgufType& type, const GgufRows& rows, std::size_t index) {
  constexpr std::size_t kLanes = 16;
  for (std::size_t block = 0; block < rows.num_blocks; ++block, row += type.block_inputs) {
    __m512 magnitudes = _mm512_setzero_ps();
    for (std::size_t k = 0; k < type.block_inputs; k += kLanes) {
      magnitudes = _mm512_max_ps(magnitudes, _mm512_abs_ps(_mm512_loadu_ps(row + k)));
    }
    const float top = std::max(_mm512_reduce_max_ps(magnitudes), kSmallest);
    const __m512 steps_of_one = _mm512_set1_ps(kSteps / top);
    std::int8_t* const values = rows.values + index * rows.stride + block * type.block_inputs;
    __m512i total = _mm512_setzero_si512();
    for (std::size_t k = 0; k < type.block_inputs; k += kLanes) {
      const __m512i steps = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(row + k), steps_of_one));
      total = _mm512_add_epi32(total, steps);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(values + k), _mm512_cvtepi32_epi8(steps));
    }
    const int sum = _mm512_reduce_add_epi32(total);
    const std::size_t at = index * rows.num_blocks + block;
    rows.scales[at] = top / kSteps;
    rows.offsets[at] = -type.zero * sum;
    rows.sums[at] = static_cast<float>(sum) * rows.scales[at];
  }
}

void multiply_panel(const GgufRows& rows, const GgufWeight& weight, std::size_t panel, float* output) {
  const std::size_t first = panel * kGgufOutputs, left = weight.num_outputs() - first;
  const __mmask16 outputs = left >= kGgufOutputs ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
  const std::size_t num_tiles = (rows.count + kGgufTileRows - 1) / kGgufTileRows;
  std::size_t row = 0;
  for (std::size_t tile = 0; tile < num_tiles; ++tile) {  // of equal height, or nearly so
    const std::size_t height = (rows.count - row + num_tiles - tile - 1) / (num_tiles - tile);
    tile_of(weight.type(), height)(rows, row, weight, weight.panel(panel), outputs, output + first);
    row += height;
  }
}

}  // namespace reader_edge
