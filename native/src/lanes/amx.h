// AMX with int8: AVX-512 with VNNI, and tiles of bytes, whose products one instruction adds up. lanes.h says what each
// function does.
#pragma once

#include <initializer_list>

#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {

constexpr int kUnsignedOffset = 128;
constexpr int kBlockTile = 10, kUnpackedTile = 32;
constexpr int kUnpackRows = 11;  // of nine rows, both ways take the same time

}  // namespace reader_edge::READER_EDGE_LANES

#include "lanes/zmm.h"

namespace reader_edge::READER_EDGE_LANES {

constexpr std::size_t kTileRows = 16, kTileBytes = 64;

// What LDTILECFG reads (Intel's manual, XFEATURES of AMX): a byte more or less, and it faults.
struct alignas(64) TileSizes {
  std::uint8_t palette = 1, start_row = 0, unused[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  void set(int tile, std::size_t num_rows) {
    row_bytes[tile] = num_rows == 0 ? 0 : kTileBytes;
    rows[tile] = static_cast<std::uint8_t>(num_rows);
  }
};
static_assert(sizeof(TileSizes) == 64);

// ONNX Runtime's kernels use tiles on the same threads, and look at what is configured: nothing is, before and after.
class Tiles {
 public:
  Tiles(std::size_t first_rows, std::size_t second_rows) {
    TileSizes sizes;
    for (const int tile : {0, 1, 4}) sizes.set(tile, first_rows);
    for (const int tile : {2, 3, 5}) sizes.set(tile, second_rows);
    for (const int tile : {6, 7}) sizes.set(tile, kTileRows);
    asm volatile("ldtilecfg %0" : : "m"(sizes) : "memory");
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
  ~Tiles() { asm volatile("tilerelease" : : : "memory"); }
};

// The instructions themselves: GCC 12 does not know that its intrinsics read memory.
template <int kTile>
inline void load_tile(const void* place, std::size_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(place), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void store_tile(void* place, std::size_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(place), "r"(stride), "i"(kTile) : "memory");
}
template <bool kIsRaised, int kSums, int kRows, int kWeights>
inline void add_tile_products() {
  if constexpr (kIsRaised) {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kRows), "i"(kWeights));
  } else {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kRows), "i"(kWeights));
  }
}
template <int kTile>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

}  // namespace reader_edge::READER_EDGE_LANES
