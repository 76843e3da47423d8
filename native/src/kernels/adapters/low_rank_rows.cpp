// Rows times the factors of an adapter, in the order that adapters/low_rank_rows.h promises.
#include "adapters/low_rank_rows.h"

#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

constexpr int kTile = kKeyTile / 2;
static_assert(kDownStep == 2 * kLanes && kUpPanel == 4 * kLanes);

inline Floats factors_at(const float* p) { return load(p); }
inline Floats factors_at(const std::uint16_t* p) { return load_halves(p); }

template <int kRows, class Factor>
void add_run_of(const float* const* rows, std::size_t offset, const Factor* down, std::size_t width, float* sums,
                std::size_t stride) {
  Floats low[kRows], high[kRows];
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
    low[m] = load(sums + m * stride);
    high[m] = load(sums + m * stride + kLanes);
  }
  std::size_t k = 0;
  for (; k + kDownStep <= width; k += kDownStep) {
    const Floats first = factors_at(down + k), second = factors_at(down + k + kLanes);
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      low[m] = fma(load(rows[m] + offset + k), first, low[m]);
      high[m] = fma(load(rows[m] + offset + k + kLanes), second, high[m]);
    }
  }
  if (k < width) {  // inputs that are not there meet noughts
    const Lanes first = first_lanes(width - k), second = first_lanes(width - k > kLanes ? width - k - kLanes : 0);
    for (int m = 0; m < kRows; ++m) {
      low[m] = fma(load(rows[m] + offset + k, first), factors_at(down + k), low[m]);
      high[m] = fma(load(rows[m] + offset + k + kLanes, second), factors_at(down + k + kLanes), high[m]);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
    store(sums + m * stride, low[m]);
    store(sums + m * stride + kLanes, high[m]);
  }
}

template <class Factor>
void add_run(const float* const* rows, std::size_t offset, std::size_t count, const Factor* down, std::size_t width,
             float* sums, std::size_t stride) {
  if constexpr (kTile == 4) {
    if (count == 4) return add_run_of<4>(rows, offset, down, width, sums, stride);
    if (count == 3) return add_run_of<3>(rows, offset, down, width, sums, stride);
  }
  if (count == 2) return add_run_of<2>(rows, offset, down, width, sums, stride);
  add_run_of<1>(rows, offset, down, width, sums, stride);
}

float joined(const float* sums) {
  Floats total = load(sums) + load(sums + kLanes);
  total = total + swapped<8>(total);
  total = total + swapped<4>(total);
  total = total + swapped<2>(total);
  total = total + swapped<1>(total);
  float lanes[kLanes];
  store(lanes, total);
  return lanes[0];
}

template <int kRows, class Factor>
void add_panel_of(const float* values, std::size_t stride, const Factor* up, std::size_t num_ranks,
                  float* const* outputs, std::size_t offset, std::size_t width) {
  constexpr int kVectors = kKeyTile / kRows < 4 ? kKeyTile / kRows < 2 ? 1 : 2 : 4;  // whose sums are in registers
  for (std::size_t j = 0; j < width; j += kVectors * kLanes) {
    Floats sums[kRows][kVectors];
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[m][v] = all(0.0f);
    }
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      Floats factors[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) factors[v] = factors_at(up + rank * kUpPanel + j + v * kLanes);
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m) {
        const Floats value = all(values[m * stride + rank]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[m][v] = fma(value, factors[v], sums[m][v]);
      }
    }
    for (int m = 0; m < kRows; ++m) {
      float* const output = outputs[m] + offset + j;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const std::size_t first = j + v * kLanes;
        if (first >= width) break;
        const Lanes lanes = first_lanes(width - first);
        store(output + v * kLanes, load(output + v * kLanes, lanes) + sums[m][v], lanes);
      }
    }
  }
}

template <class Factor>
void add_panel(const float* values, std::size_t stride, std::size_t count, const Factor* up, std::size_t num_ranks,
               float* const* outputs, std::size_t offset, std::size_t width) {
  if constexpr (kTile == 4) {
    if (count == 4) return add_panel_of<4>(values, stride, up, num_ranks, outputs, offset, width);
    if (count == 3) return add_panel_of<3>(values, stride, up, num_ranks, outputs, offset, width);
  }
  if (count == 2) return add_panel_of<2>(values, stride, up, num_ranks, outputs, offset, width);
  add_panel_of<1>(values, stride, up, num_ranks, outputs, offset, width);
}

}  // namespace

extern const LowRankKernels low_rank_kernels{
    kTile, joined, {add_run<float>, add_panel<float>}, {add_run<std::uint16_t>, add_panel<std::uint16_t>}};

}  // namespace reader_edge::READER_EDGE_LANES
