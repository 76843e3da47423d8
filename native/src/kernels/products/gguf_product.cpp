// Rows of bytes times weights in the blocks of GGUF files. Unsigned codes times the signed bytes of a row, four to a
// lane, add up to integers: a block's sum is exact. Blocks are combined in fp32, one after another from the first, each
// by the same two or three operations: their scales are numbers in fp16 and of a row, which no integer holds, so that
// the order is what keeps a row's bits at every width.
#include "products/gguf/gguf_product.h"

#include <algorithm>
#include <utility>

#include "kernels/products/block_lanes.h"
#include "kernels/products/gguf_blocks.h"
#include "kernels/products/row_tiles.h"
#include "lanes/lanes.h"
#include "machine/scratch.h"
#include "shared_constants.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

// A block of kCount rows, added to their totals, whose sums grow side by side: each waits for its last instruction. More
// than registers hold, which costs less than a few rows at a time. The order of these operations is a promise.
template <class Form, std::size_t kCount>
[[gnu::always_inline]] inline void add_block(Floats* totals, const Bytes (&codes)[Form::kInputs / 4], Floats scale,
                                             Floats minimum, const GgufRows& rows, const RowPointers<kCount>& values,
                                             std::size_t row, std::size_t block) {
  constexpr std::size_t kInputs = Form::kInputs;
  const std::size_t at = row * rows.num_blocks + block, stride = rows.num_blocks;
  CodeSums<Form::kSumBits> sums[kCount];
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kCount; ++m) sums[m].start(Form::kHasMinima ? 0 : rows.offsets[at + m * stride]);
#pragma GCC unroll 8
  for (std::size_t g = 0; g < kInputs / 4; ++g) {
#pragma GCC unroll 12
    for (std::size_t m = 0; m < kCount; ++m) sums[m].add(codes[g], values.at(m, g * 4));
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
  RowPointers<kRows> values(rows.values + row * rows.stride, rows.stride);
  Floats totals[kRows];
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) totals[m] = all(0.0f);
  for (std::size_t first = 0; first < rows.num_blocks; first += Form::kChunkBlocks) {
    const std::size_t count = std::min(Form::kChunkBlocks, rows.num_blocks - first);
    const std::size_t scale_bytes = weight.scale_bytes(count);
    for (std::size_t i = 0; i < scale_bytes; i += kVector) fetch_early(chunk + i + kAhead);
    const ChunkNumbers<Form> numbers(chunk, count);
    chunk += scale_bytes;
    for (std::size_t b = 0; b < count; ++b, chunk += Form::kBlockBytes) {
      Bytes codes[kInputs / 4];
      load_levels<Form>(chunk, table, codes);
      add_block<Form, kRows>(totals, codes, numbers.scale(b), numbers.minimum(b), rows, values, row, first + b);
      values.advance(kInputs);
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
  if (type.has_super_blocks()) {
    if (type.levels != nullptr) return tile_of<Form<32, 4, false, Numbers::kShared, 8>>(num_rows, kHeights);
    return type.bits == 4   ? tile_of<Form<32, 4, true, Numbers::kShared>>(num_rows, kHeights)
           : type.bits == 5 ? tile_of<Form<32, 5, true, Numbers::kShared>>(num_rows, kHeights)
                            : tile_of<Form<16, 6, false, Numbers::kShared>>(num_rows, kHeights);
  }
  if (type.levels != nullptr) {
    return type.has_byte_levels() ? tile_of<Form<32, 4, false, Numbers::kHalves, 8>>(num_rows, kHeights)
                                  : tile_of<Form<32, 4, false, Numbers::kPowers, 5>>(num_rows, kHeights);
  }
  if (type.bits == 8) return tile_of<Form<32, 8, false>>(num_rows, kHeights);
  if (type.bits == 5) {
    return type.has_minima ? tile_of<Form<32, 5, true>>(num_rows, kHeights) : tile_of<Form<32, 5, false>>(num_rows, kHeights);
  }
  return type.has_minima ? tile_of<Form<32, 4, true>>(num_rows, kHeights) : tile_of<Form<32, 4, false>>(num_rows, kHeights);
}

// A chunk of a panel as tiles share it: the levels of its blocks, four inputs of each output to a vector.
struct UnpackedChunk {
  alignas(kVector) std::int8_t levels[kGgufChunkInputs * kGgufOutputs];
  alignas(kVector) float scales[kMaxBlocks * kGgufOutputs], minima[kMaxBlocks * kGgufOutputs];
  std::size_t first, count;  // blocks
};

template <class Form>
void unpack_chunk(const GgufWeight& weight, const std::int8_t* packed, UnpackedChunk& chunk) {
  const std::size_t scale_bytes = weight.scale_bytes(chunk.count);
  for (std::size_t i = 0; i < scale_bytes; i += kVector) fetch_early(packed + i + kAhead);
  const ChunkNumbers<Form> numbers(packed, chunk.count);
  for (std::size_t b = 0; b < chunk.count; ++b) {
    store(chunk.scales + b * kGgufOutputs, numbers.scale(b));
    if constexpr (Form::kHasMinima) store(chunk.minima + b * kGgufOutputs, numbers.minimum(b));
  }
  packed += scale_bytes;
  std::int8_t* out = chunk.levels;
  for (std::size_t b = 0; b < chunk.count; ++b, packed += Form::kBlockBytes) {
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
  RowPointers<kRows> values(rows.values + row * rows.stride + chunk.first * Form::kInputs, rows.stride);
  for (std::size_t b = 0; b < chunk.count; ++b) {
    Bytes codes[Form::kInputs / 4];
#pragma GCC unroll 8
    for (Bytes& four : codes) four = load_bytes(std::exchange(levels, levels + kVector));
    const Floats scale = load(chunk.scales + b * kGgufOutputs);
    const Floats minimum = Form::kHasMinima ? load(chunk.minima + b * kGgufOutputs) : scale;
    add_block<Form, kRows>(totals, codes, scale, minimum, rows, values, row, chunk.first + b);
    values.advance(Form::kInputs);
  }
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) kept[row + m] = totals[m];
}

// All rows times a panel, each of whose chunks is unpacked once for all tiles.
template <class Form>
void multiply_unpacked(const GgufRows& rows, const GgufWeight& weight, const std::int8_t* packed, Lanes outputs,
                       float* output) {
  thread_local Scratch kept;
  auto* const totals = reinterpret_cast<Floats*>(kept.take<float>(static_cast<std::int64_t>(rows.count * kLanes)));
  std::fill_n(totals, rows.count, all(0.0f));
  UnpackedChunk chunk;
  for (chunk.first = 0; chunk.first < rows.num_blocks; chunk.first += Form::kChunkBlocks) {
    chunk.count = std::min(Form::kChunkBlocks, rows.num_blocks - chunk.first);
    unpack_chunk<Form>(weight, packed, chunk);
    packed += weight.chunk_bytes(chunk.count);
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
    multiply = type.bits == 6              ? multiply_unpacked<Form<16, 6, false, Numbers::kShared>>
               : type.has_super_blocks() ? multiply_unpacked<Form<32, 5, true, Numbers::kShared>>
               : type.has_minima         ? multiply_unpacked<Form<32, 5, true>>
                                         : multiply_unpacked<Form<32, 5, false>>;
  }
  multiply(rows, weight, weight.panel(panel), outputs, output + begin);
}

}  // namespace

extern const GgufKernels gguf_kernels{kCodeTile, round_blocks, multiply_panel};

}  // namespace reader_edge::READER_EDGE_LANES
