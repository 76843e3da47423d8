// Rows of bytes times weights in the blocks of GGUF files. Unsigned codes times the signed bytes of a row, four to a
// lane, add up to integers: a block's sum is exact. Blocks are combined in fp32, one after another from the first, each
// by the same two or three operations: their scales are numbers in fp16 and of a row, which no integer holds, so that
// the order is what keeps a row's bits at every width.
#include "products/gguf/gguf_product.h"

#include <algorithm>
#include <utility>

#include "kernels/products/row_tiles.h"
#include "lanes/lanes.h"
#include "machine/scratch.h"
#include "shared_constants.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

constexpr std::size_t kAhead = 16 * 1024;  // weights are fetched this many bytes early
constexpr std::size_t kMaxBlocks = 16;     // of a chunk

// Scales and minima of a chunk as numbers: each is exact.
struct ChunkScales {
  alignas(64) float scales[kMaxBlocks * kGgufOutputs];
  alignas(64) float minima[kMaxBlocks * kGgufOutputs];
};

Floats halves_at(const std::int8_t* place) { return load_halves(reinterpret_cast<const std::uint16_t*>(place)); }

// 2^(e - 128) of bytes e; below the least normal number the bits are others.
Floats powers_at(const std::int8_t* place) {
  const Ints e = widened(reinterpret_cast<const std::uint8_t*>(place));
  return bits_of(max(shifted_left<23>(e - all(1)), shifted_left<21>(e + all(1))));
}

Floats codes_at(const std::int8_t* place, bool is_signed) {
  return number_of(is_signed ? widened(place) : widened(reinterpret_cast<const std::uint8_t*>(place)));
}

// One kind of them, numbers at `halves` and codes at `codes`.
void widen(const GgufType& type, const std::int8_t* halves, const std::int8_t* codes, std::size_t count, float* out) {
  const Floats shared = halves_at(halves);
  for (std::size_t b = 0; b < count; ++b) {
    const Floats number = type.has_super_blocks() ? shared * codes_at(codes + b * kGgufOutputs, type.has_signed_codes)
                                           : halves_at(halves + 2 * b * kGgufOutputs);
    store(out + b * kGgufOutputs, number);
  }
}

void widen_chunk(const GgufType& type, const std::int8_t* chunk, std::size_t count, ChunkScales& out) {
  for (std::size_t b = 0; type.has_exponents && b < count; ++b) {
    store(out.scales + b * kGgufOutputs, powers_at(chunk + b * kGgufOutputs));
  }
  if (type.has_exponents) return;
  const std::size_t numbers = type.has_super_blocks() ? 1 : count, bytes = 2 * numbers * kGgufOutputs;
  const std::int8_t* const codes = chunk + bytes * (1 + type.has_minima);
  widen(type, chunk, codes, count, out.scales);
  if (type.has_minima) widen(type, chunk + bytes, codes + count * kGgufOutputs, count, out.minima);
}

// What a type is to a tile, known when it is compiled. kSumBits: of the largest level.
template <std::size_t kTheInputs, std::size_t kTheBits, bool kIsWithMinima, std::size_t kLevelBits = 0>
struct Form {
  static constexpr std::size_t kInputs = kTheInputs, kBits = kTheBits, kSumBits = kLevelBits > 0 ? kLevelBits : kTheBits;
  static constexpr bool kHasMinima = kIsWithMinima, kHasLevels = kLevelBits > 0;
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

// A block of kCount rows, added to their totals, whose sums grow side by side: each waits for its last instruction. More
// than registers hold, which costs less than a few rows at a time. The order of these operations is a promise.
template <class Form, std::size_t kCount>
[[gnu::always_inline]] inline void add_block(Floats* totals, const Bytes (&codes)[Form::kInputs / 4], Floats scale,
                                             Floats minimum, const GgufRows& rows, std::size_t row, std::size_t block) {
  constexpr std::size_t kInputs = Form::kInputs;
  const std::int8_t* const values = rows.values + row * rows.stride + block * kInputs;
  const std::size_t at = row * rows.num_blocks + block, stride = rows.num_blocks;
  CodeSums<Form::kSumBits> sums[kCount];
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kCount; ++m) sums[m].start(Form::kHasMinima ? 0 : rows.offsets[at + m * stride]);
#pragma GCC unroll 8
  for (std::size_t g = 0; g < kInputs / 4; ++g) {
#pragma GCC unroll 12
    for (std::size_t m = 0; m < kCount; ++m) sums[m].add(codes[g], values + m * rows.stride + g * 4);
  }
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kCount; ++m) {
    const Floats sum = number_of(sums[m].total()) * all(rows.scales[at + m * stride]);
    totals[m] = fma(scale, sum, totals[m]);
    if constexpr (Form::kHasMinima) totals[m] = fma(minimum, all(rows.sums[at + m * stride]), totals[m]);
  }
}

// kRows rows from `row` on times a panel, all sums in registers.
template <class Form, std::size_t kRows>
void multiply_tile(const GgufRows& rows, std::size_t row, const GgufWeight& weight, const std::int8_t* chunk,
                   Lanes outputs, float* output) {
  constexpr std::size_t kInputs = Form::kInputs;
  const Bytes table = Form::kHasLevels ? in_all_quarters(weight.type().levels) : Bytes{};
  Floats totals[kRows];
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) totals[m] = all(0.0f);
  for (std::size_t first = 0; first < rows.num_blocks; first += kGgufChunkInputs / kInputs) {
    const std::size_t count = std::min(kGgufChunkInputs / kInputs, rows.num_blocks - first);
    const std::size_t scale_bytes = weight.scale_bytes(count);
    for (std::size_t i = 0; i < scale_bytes; i += kVector) fetch_early(chunk + i + kAhead);
    ChunkScales numbers;
    widen_chunk(weight.type(), chunk, count, numbers);
    chunk += scale_bytes;
    for (std::size_t b = 0; b < count; ++b, chunk += weight.block_bytes()) {
      Bytes codes[kInputs / 4];
      load_levels<Form>(chunk, table, codes);
      const Floats scale = load(numbers.scales + b * kGgufOutputs);
      const Floats minimum = Form::kHasMinima ? load(numbers.minima + b * kGgufOutputs) : scale;
      add_block<Form, kRows>(totals, codes, scale, minimum, rows, row, first + b);
    }
  }
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) {
    store(output + rows.places[row + m] * weight.num_outputs(), totals[m], outputs);
  }
}

using Tile = decltype(&multiply_tile<Form<32, 4, false>, 1>);

template <class Form, std::size_t... kBefore>
Tile tile_of(std::size_t num_rows, std::index_sequence<kBefore...>) {
  static constexpr Tile kTiles[] = {multiply_tile<Form, kBefore + 1>...};
  return kTiles[num_rows - 1];
}

Tile tile_of(const GgufType& type, std::size_t num_rows) {
  constexpr auto kHeights = std::make_index_sequence<kCodeTile>();
  if (type.levels != nullptr) {
    return type.has_byte_levels() ? tile_of<Form<32, 4, false, 8>>(num_rows, kHeights)
                                  : tile_of<Form<32, 4, false, 5>>(num_rows, kHeights);
  }
  if (type.bits == 8) return tile_of<Form<32, 8, false>>(num_rows, kHeights);
  if (type.bits == 6) return tile_of<Form<16, 6, false>>(num_rows, kHeights);
  if (type.bits == 5) {
    return type.has_minima ? tile_of<Form<32, 5, true>>(num_rows, kHeights) : tile_of<Form<32, 5, false>>(num_rows, kHeights);
  }
  return type.has_minima ? tile_of<Form<32, 4, true>>(num_rows, kHeights) : tile_of<Form<32, 4, false>>(num_rows, kHeights);
}

// A chunk of a panel as tiles share it: the levels of its blocks, four inputs of each output to a vector.
struct UnpackedChunk {
  alignas(kVector) std::int8_t levels[kGgufChunkInputs * kGgufOutputs];
  ChunkScales numbers;
  std::size_t first, count;  // blocks
};

template <class Form>
void unpack_chunk(const GgufWeight& weight, const std::int8_t* packed, UnpackedChunk& chunk) {
  const std::size_t scale_bytes = weight.scale_bytes(chunk.count);
  for (std::size_t i = 0; i < scale_bytes; i += kVector) fetch_early(packed + i + kAhead);
  widen_chunk(weight.type(), packed, chunk.count, chunk.numbers);
  packed += scale_bytes;
  std::int8_t* out = chunk.levels;
  for (std::size_t b = 0; b < chunk.count; ++b, packed += weight.block_bytes()) {
    Bytes codes[Form::kInputs / 4];
    load_levels<Form>(packed, Bytes{}, codes);
    for (const Bytes& levels : codes) store_bytes(std::exchange(out, out + kVector), levels);
  }
}

// kRows rows from `row` on times a chunk, added to what all rows have so far.
template <class Form, std::size_t kRows>
void add_chunk(const GgufRows& rows, std::size_t row, const UnpackedChunk& chunk, Floats* kept) {
  Floats totals[kRows];
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) totals[m] = kept[row + m];
  const std::int8_t* levels = chunk.levels;
  for (std::size_t b = 0; b < chunk.count; ++b) {
    Bytes codes[Form::kInputs / 4];
#pragma GCC unroll 8
    for (Bytes& four : codes) four = load_bytes(std::exchange(levels, levels + kVector));
    const Floats scale = load(chunk.numbers.scales + b * kGgufOutputs);
    const Floats minimum = Form::kHasMinima ? load(chunk.numbers.minima + b * kGgufOutputs) : scale;
    add_block<Form, kRows>(totals, codes, scale, minimum, rows, row, chunk.first + b);
  }
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) kept[row + m] = totals[m];
}

// All rows times a panel, each of whose chunks is unpacked once for all tiles.
template <class Form>
void multiply_unpacked(const GgufRows& rows, const GgufWeight& weight, const std::int8_t* packed, Lanes outputs,
                       float* output) {
  constexpr std::size_t kChunkBlocks = kGgufChunkInputs / Form::kInputs;
  thread_local Scratch kept;
  auto* const totals = reinterpret_cast<Floats*>(kept.take<float>(static_cast<std::int64_t>(rows.count * kLanes)));
  std::fill_n(totals, rows.count, all(0.0f));
  UnpackedChunk chunk;
  for (chunk.first = 0; chunk.first < rows.num_blocks; chunk.first += kChunkBlocks) {
    chunk.count = std::min(kChunkBlocks, rows.num_blocks - chunk.first);
    unpack_chunk<Form>(weight, packed, chunk);
    packed += weight.scale_bytes(chunk.count) + chunk.count * weight.block_bytes();
    for_tiles<kCodeTile>(rows.count, [&](std::size_t row, auto height) {
      add_chunk<Form, height>(rows, row, chunk, totals);
    });
  }
  for (std::size_t row = 0; row < rows.count; ++row) {
    store(output + rows.places[row] * weight.num_outputs(), totals[row], outputs);
  }
}

void round_blocks(const float* row, const GgufType& type, const GgufRows& rows, std::size_t index) {
  const int zero = type.has_byte_levels() ? type.zero - 128 + kUnsignedOffset : type.zero;
  for (std::size_t block = 0; block < rows.num_blocks; ++block, row += type.block_inputs) {
    Floats magnitudes = all(0.0f);
    for (std::size_t k = 0; k < type.block_inputs; k += kLanes) magnitudes = max(magnitudes, magnitude(load(row + k)));
    const float top = std::max(largest_of(magnitudes), kSmallest);
    const Floats steps_of_one = all(kSteps / top);
    std::int8_t* const values = rows.values + index * rows.stride + block * type.block_inputs;
    Ints sums = all(0);
    for (std::size_t k = 0; k < type.block_inputs; k += kLanes) {
      const Ints steps = rounded(load(row + k) * steps_of_one);
      sums = sums + steps;
      store_low_bytes(values + k, steps);
    }
    const int sum = total_of(sums);
    const std::size_t at = index * rows.num_blocks + block;
    rows.scales[at] = top / kSteps;
    rows.offsets[at] = -zero * sum;
    rows.sums[at] = static_cast<float>(sum) * rows.scales[at];
  }
}

void multiply_tiles(const GgufRows& rows, const GgufWeight& weight, const std::int8_t* packed, Lanes outputs, float* output) {
  for_tiles<kCodeTile>(rows.count, [&](std::size_t row, auto height) {
    tile_of(weight.type(), height)(rows, row, weight, packed, outputs, output);
  });
}

void multiply_panel(const GgufRows& rows, const GgufWeight& weight, std::size_t panel, float* output) {
  const std::size_t begin = panel * kGgufOutputs;
  const Lanes outputs = first_lanes(weight.num_outputs() - begin);
  const GgufType& type = weight.type();
  auto multiply = multiply_tiles;
  if (kIsUnpackingDear && type.qh_bits() > 0 && rows.count > kCodeTile) {
    multiply = type.bits == 6     ? multiply_unpacked<Form<16, 6, false>>
               : type.has_minima ? multiply_unpacked<Form<32, 5, true>>
                                 : multiply_unpacked<Form<32, 5, false>>;
  }
  multiply(rows, weight, weight.panel(panel), outputs, output + begin);
}

}  // namespace

extern const GgufKernels gguf_kernels{kCodeTile, round_blocks, multiply_panel};

}  // namespace reader_edge::READER_EDGE_LANES
