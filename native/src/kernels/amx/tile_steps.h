// The inner loop of matrix products in AMX tiles: tiles of rows times tiles of weights, step by step along the inputs.
#pragma once

#include "lanes/lanes.h"
#include "products/blocks/block_weight.h"

namespace reader_edge::READER_EDGE_LANES {

constexpr std::size_t kStepInputs = kTileBytes;                      // of a row, that a tile holds
constexpr std::size_t kGroupBytes = kPanelOutputs * 4;               // weights of four inputs
constexpr std::size_t kStepBytes = kStepInputs / 4 * kGroupBytes;    // of weights

// Rows in tiles 4 and 5, `stride` bytes apart in each; second: none where it is null.
struct TileRows {
  const void *first, *second;
  std::size_t stride;
};

// Weights to come, of which each step fetches `lines` vectors, `step_bytes` behind those of the step before.
struct Early {
  const std::int8_t* place;
  std::size_t lines, step_bytes;
};

// Adds products of rows, raised or signed, with weights (inputs / 4, kPanelOutputs, 4), signed or raised, to tiles 0 to 3:
// sums of the first tile's rows in 0 and 1, of the second's in 2 and 3, 16 outputs each.
template <bool kIsRaised>
void add_tile_steps(const TileRows& rows, const std::int8_t* weights, std::size_t num_steps, const Early& early) {
  const auto* first = static_cast<const std::int8_t*>(rows.first);
  const auto* second = static_cast<const std::int8_t*>(rows.second);
  const std::int8_t* ahead = early.place;
  for (std::size_t step = 0; step < num_steps; ++step, weights += kStepBytes, ahead += early.step_bytes) {
    load_tile<6>(weights, kGroupBytes);
    load_tile<4>(first, rows.stride);
    add_tile_products<kIsRaised, 0, 4, 6>();
    for (std::size_t line = 0; line < early.lines / 2; ++line) fetch_early(ahead + line * kVector);
    load_tile<7>(weights + kVector, kGroupBytes);
    add_tile_products<kIsRaised, 1, 4, 7>();
    for (std::size_t line = early.lines / 2; line < early.lines; ++line) fetch_early(ahead + line * kVector);
    first += kStepInputs;
    if (second == nullptr) continue;
    load_tile<5>(second, rows.stride);
    add_tile_products<kIsRaised, 2, 5, 6>();
    add_tile_products<kIsRaised, 3, 5, 7>();
    second += kStepInputs;
  }
}

}  // namespace reader_edge::READER_EDGE_LANES
