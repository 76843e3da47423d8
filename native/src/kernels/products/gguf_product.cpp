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

// A block of kCount rows times kPanels panels, added to their totals, whose sums grow side by side: each waits for its
// last instruction. More than registers hold, which costs less than a few rows at a time. The order of these operations
// is a promise. Of a panel, codes(g, p): four inputs of each output; scale(p), minimum(p).
template <class Form, std::size_t kCount, std::size_t kPanels, class Codes, class Scale, class Minimum>
[[gnu::always_inline]] inline void add_block(Floats (&totals)[kCount][kPanels], const Codes& codes, const Scale& scale,
                                             const Minimum& minimum, const GgufRows& rows,
                                             const RowPointers<kCount>& values, std::size_t row, std::size_t block) {
  const std::size_t at = row * rows.num_blocks + block, stride = rows.num_blocks;
  CodeSums<Form::kSumBits> sums[kCount][kPanels];
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kCount; ++m) {
    for (auto& sum : sums[m]) sum.start(Form::kHasMinima ? 0 : rows.offsets[at + m * stride]);
  }
#pragma GCC unroll 8
  for (std::size_t g = 0; g < Form::kInputs / 4; ++g) {
    Bytes levels[kPanels];
    for (std::size_t p = 0; p < kPanels; ++p) levels[p] = codes(g, p);
#pragma GCC unroll 12
    for (std::size_t m = 0; m < kCount; ++m) {
      if constexpr (kPanels == 1) {
        sums[m][0].add(levels[0], values.at(m, g * 4));
      } else {
        const Bytes four = values.four(m, g * 4);  // one read for all panels
        for (std::size_t p = 0; p < kPanels; ++p) sums[m][p].add(levels[p], four);
      }
    }
  }
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kCount; ++m) {
    for (std::size_t p = 0; p < kPanels; ++p) {
      const Floats sum = number_of(sums[m][p].total()) * all(rows.scales[at + m * stride]);
      totals[m][p] = fma(scale(p), sum, totals[m][p]);
      if constexpr (Form::kHasMinima) totals[m][p] = fma(minimum(p), all(rows.sums[at + m * stride]), totals[m][p]);
    }
  }
}

// kRows rows from `row` on times a panel, all sums in registers.
template <class Form, std::size_t kRows>
void multiply_tile(const GgufRows& rows, std::size_t row, const GgufWeight& weight, const std::int8_t* chunk,
                   Lanes outputs, float* output) {
  constexpr std::size_t kInputs = Form::kInputs;
  const Bytes table = Form::kHasLevels ? in_all_quarters(weight.type().levels) : Bytes{};
  RowPointers<kRows> values(rows.values + row * rows.stride, rows.stride);
  Floats totals[kRows][1];
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) totals[m][0] = all(0.0f);
  for (std::size_t first = 0; first < rows.num_blocks; first += Form::kChunkBlocks) {
    const std::size_t count = std::min(Form::kChunkBlocks, rows.num_blocks - first);
    const std::size_t scale_bytes = weight.scale_bytes(count);
    for (std::size_t i = 0; i < scale_bytes; i += kVector) fetch_early(chunk + i + kAhead);
    const ChunkNumbers<Form> numbers(chunk, count);
    chunk += scale_bytes;
    for (std::size_t b = 0; b < count; ++b, chunk += Form::kBlockBytes) {
      Bytes codes[kInputs / 4];
      load_levels<Form>(chunk, table, codes);
      const auto codes_of = [&](std::size_t g, std::size_t) { return codes[g]; };
      const auto scale = [it = numbers.scale(b)](std::size_t) { return it; };
      const auto minimum = [it = numbers.minimum(b)](std::size_t) { return it; };
      add_block<Form>(totals, codes_of, scale, minimum, rows, values, row, first + b);
      values.advance(kInputs);
    }
  }
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) {
    store(output + rows.places[row + m] * weight.num_outputs(), totals[m][0], outputs);
  }
}

// A chunk of kWidePanels panels as tiles share it: where its blocks are, or their levels, four inputs of each output to a
// vector, those of all panels side by side.
struct WideChunk {
  const std::int8_t* blocks[kWidePanels];
  const std::int8_t *ahead[kWidePanels], *end[kWidePanels];  // of each panel, `lines` a block of each tile are fetched early,
  std::size_t others;                                        // and behind its end what lies so much further
  alignas(kVector) std::int8_t levels[kGgufChunkInputs * kGgufOutputs * kWidePanels];
  alignas(kVector) float scales[kMaxBlocks * kGgufOutputs * kWidePanels], minima[kMaxBlocks * kGgufOutputs * kWidePanels];
  std::size_t first, count, lines;  // first, count: blocks
};

// Whether tiles read blocks as they are, since ports are free beside those of products.
template <class Form>
constexpr bool kIsReadPacked = kWidePanels > 1 && (Form::kBits == 4 || Form::kBits == 8) && !Form::kHasLevels;

// A panel's part of a chunk.
template <class Form>
void unpack_chunk(const GgufWeight& weight, const std::int8_t* packed, std::size_t panel, WideChunk& chunk) {
  const ChunkNumbers<Form> numbers(packed, chunk.count);
  for (std::size_t b = 0; b < chunk.count; ++b) {
    store(chunk.scales + (b * kWidePanels + panel) * kGgufOutputs, numbers.scale(b));
    if constexpr (Form::kHasMinima) store(chunk.minima + (b * kWidePanels + panel) * kGgufOutputs, numbers.minimum(b));
  }
  packed += weight.scale_bytes(chunk.count);
  chunk.blocks[panel] = packed;
  if constexpr (kIsReadPacked<Form>) return;
  const Bytes table = Form::kHasLevels ? in_all_quarters(weight.type().levels) : Bytes{};
  std::int8_t* out = chunk.levels + panel * kVector;
  for (std::size_t b = 0; b < chunk.count; ++b, packed += Form::kBlockBytes) {
    Bytes codes[Form::kInputs / 4];
    load_levels<Form>(packed, table, codes);
    for (const Bytes& levels : codes) store_bytes(std::exchange(out, out + kWidePanels * kVector), levels);
  }
}

// kRows rows from `row` on times a chunk, added to what all rows have so far (R, kWidePanels).
template <class Form, std::size_t kRows>
void add_chunk(const GgufRows& rows, std::size_t row, WideChunk& chunk, Floats* kept) {
  Floats totals[kRows][kWidePanels];
  Floats* const mine = kept + row * kWidePanels;
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) {
    for (std::size_t p = 0; p < kWidePanels; ++p) totals[m][p] = mine[m * kWidePanels + p];
  }
  constexpr std::size_t kGroups = Form::kInputs / 4;
  const std::int8_t* levels = kIsReadPacked<Form> ? chunk.blocks[0] : chunk.levels;
  const std::ptrdiff_t apart = kIsReadPacked<Form> ? chunk.blocks[kWidePanels - 1] - levels : kVector;
  RowPointers<kRows> values(rows.values + row * rows.stride + chunk.first * Form::kInputs, rows.stride);
  for (std::size_t b = 0; b < chunk.count; ++b) {
    if (b % (kVector / Form::kInputs) == 0) {  // rows of the next tile
#pragma GCC unroll 12
      for (std::size_t m = 0; m < kRows; ++m) fetch(values.at(m, kRows * rows.stride));
    }
    for (std::size_t i = 0; i < chunk.lines; ++i) {
      for (std::size_t p = 0; p < kWidePanels; ++p, chunk.ahead[p - 1] += kVector) {
        fetch_early(chunk.ahead[p] + (chunk.ahead[p] < chunk.end[p] ? 0 : chunk.others));
      }
    }
    const auto codes = [&](std::size_t g, std::size_t p) {
      const std::int8_t* const place = levels + static_cast<std::ptrdiff_t>(p) * apart;
      if constexpr (!kIsReadPacked<Form>) return load_bytes(place + g * kWidePanels * kVector);
      if constexpr (Form::kBits == 8) return lowered(load_bytes(place + g * kVector));
      const Bytes both = load_bytes(place + g % (kGroups / 2) * kVector);
      return g < kGroups / 2 ? low_halves(both) : high_halves(both);
    };
    const auto scale = [&](std::size_t p) { return load(chunk.scales + (b * kWidePanels + p) * kGgufOutputs); };
    const auto minimum = [&](std::size_t p) { return load(chunk.minima + (b * kWidePanels + p) * kGgufOutputs); };
    add_block<Form>(totals, codes, scale, minimum, rows, values, row, chunk.first + b);
    levels += kIsReadPacked<Form> ? Form::kBlockBytes : kGroups * kWidePanels * kVector;
    values.advance(Form::kInputs);
  }
#pragma GCC unroll 12
  for (std::size_t m = 0; m < kRows; ++m) {
    for (std::size_t p = 0; p < kWidePanels; ++p) mine[m * kWidePanels + p] = totals[m][p];
  }
}

// All rows times `many` panels, kWidePanels at most, chunk by chunk, so that what tiles share stays in the nearest cache.
template <class Form>
void multiply_wide(const GgufRows& rows, const GgufWeight& weight, std::size_t panel, std::size_t many, float* output) {
  thread_local Scratch kept;
  const std::size_t num_totals = rows.count * kWidePanels;
  auto* const totals = reinterpret_cast<Floats*>(kept.take<float>(static_cast<std::int64_t>(num_totals * kLanes)));
  std::fill_n(totals, num_totals, all(0.0f));
  const auto place = [&](std::size_t row, std::size_t p) {
    return output + rows.places[row] * weight.num_outputs() + (panel + p) * kGgufOutputs;
  };
  WideChunk chunk;
  chunk.others = (kWidePanels - 1) * weight.panel_bytes();
  std::size_t at = 0;  // in a panel
  for (chunk.first = 0; chunk.first < rows.num_blocks; chunk.first += Form::kChunkBlocks) {
    chunk.count = std::min(Form::kChunkBlocks, rows.num_blocks - chunk.first);
    for (std::size_t p = 0; p < kWidePanels; ++p) {  // where there is no second one, the first in its place
      const std::int8_t* const packed = weight.panel(panel + std::min(p, many - 1));
      chunk.ahead[p] = packed + at + kAhead;
      chunk.end[p] = packed + weight.panel_bytes();
      unpack_chunk<Form>(weight, packed + at, p, chunk);
    }
    const std::size_t num_times = (rows.count + kWideTile - 1) / kWideTile * chunk.count;
    chunk.lines = (weight.chunk_bytes(chunk.count) / kVector + num_times - 1) / num_times;
    at += weight.chunk_bytes(chunk.count);
    for_tiles<kWideTile>(rows.count, [&](std::size_t row, auto height) {
      for (std::size_t m = 0; at == weight.panel_bytes() && m < height; ++m) {
        for (std::size_t p = 0; p < many; ++p) fetch(place(row + m, p));
      }
      add_chunk<Form, height>(rows, row, chunk, totals);
    });
  }
  for (std::size_t p = 0; p < many; ++p) {
    const Lanes outputs = first_lanes(weight.num_outputs() - (panel + p) * kGgufOutputs);
    for (std::size_t row = 0; row < rows.count; ++row) store(place(row, p), totals[row * kWidePanels + p], outputs);
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

constexpr std::size_t kManyRows = 32;  // for which chunks are worth unpacking in any form of less than a byte

template <class Form>
void multiply_panels(const GgufRows& rows, const GgufWeight& weight, std::size_t first, std::size_t last, float* output) {
  if constexpr (kWidePanels > 1 || Form::kBits < 8) {
    constexpr bool kIsUnpackingDear = Form::kBits == 5 || Form::kBits == 6;  // it takes several instructions
    constexpr std::size_t kLeastRows = kWidePanels > 1 || kIsUnpackingDear ? kWideRows : kManyRows;
    for (; rows.count >= kLeastRows && first < last; first += kWidePanels) {
      multiply_wide<Form>(rows, weight, first, std::min<std::size_t>(last - first, kWidePanels), output);
    }
  }
  for (; first < last; ++first) {
    const std::size_t begin = first * kGgufOutputs;
    const Lanes outputs = first_lanes(weight.num_outputs() - begin);
    for_tiles<kCodeTile>(rows.count, [&](std::size_t row, auto height) {
      multiply_tile<Form, height>(rows, row, weight, weight.panel(first), outputs, output + begin);
    });
  }
}

auto multiply_of(const GgufType& type) {
  if (type.has_super_blocks()) {
    if (type.levels != nullptr) return multiply_panels<Form<32, 4, false, Numbers::kShared, 8>>;
    return type.bits == 4   ? multiply_panels<Form<32, 4, true, Numbers::kShared>>
           : type.bits == 5 ? multiply_panels<Form<32, 5, true, Numbers::kShared>>
                            : multiply_panels<Form<16, 6, false, Numbers::kShared>>;
  }
  if (type.levels != nullptr) {
    return type.has_byte_levels() ? multiply_panels<Form<32, 4, false, Numbers::kHalves, 8>>
                                  : multiply_panels<Form<32, 4, false, Numbers::kPowers, 5>>;
  }
  if (type.bits == 8) return multiply_panels<Form<32, 8, false>>;
  if (type.bits == 5) return type.has_minima ? multiply_panels<Form<32, 5, true>> : multiply_panels<Form<32, 5, false>>;
  return type.has_minima ? multiply_panels<Form<32, 4, true>> : multiply_panels<Form<32, 4, false>>;
}

void multiply(const GgufRows& rows, const GgufWeight& weight, std::size_t first, std::size_t last, float* output) {
  multiply_of(weight.type())(rows, weight, first, last, output);
}

}  // namespace

extern const GgufKernels gguf_kernels{kCodeTile, kWidePanels, round_blocks, multiply};

}  // namespace reader_edge::READER_EDGE_LANES
