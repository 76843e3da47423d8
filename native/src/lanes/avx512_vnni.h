// AVX-512 with VNNI: registers of 512 bits, and an instruction for products of bytes. lanes.h says what each function does.
#pragma once

#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {

constexpr int kUnsignedOffset = 128;
constexpr int kRowTile = 6, kSumVectors = 4;
constexpr int kBlockTile = 10, kUnpackedTile = 12, kCodeTile = 12, kUnpackRows = 17;
constexpr int kScoreTile = 8, kWeightTile = 3;
constexpr int kWidePanels = 2, kWideTile = 6, kWideRows = 17;
constexpr int kKeyTile = 8, kValueTile = 4, kStateVectors = 4;

}  // namespace reader_edge::READER_EDGE_LANES

#include "lanes/zmm.h"
