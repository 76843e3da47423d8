// What matrix products with 4-bit weights in blocks share: rows and weights read into lanes of four inputs.
#pragma once

#include "lanes/lanes.h"
#include "products/blocks/block_weight.h"

namespace reader_edge::READER_EDGE_LANES {

constexpr std::size_t kPanelVectors = kPanelOutputs / kLanes;
constexpr std::size_t kWeightsAhead = 16 * 1024;  // weights are fetched this many bytes early

// kRows rows of bytes, `stride` apart, read side by side. Each pointer serves four: there are not registers enough for
// an address of each row.
template <std::size_t kRows>
class RowPointers {
 public:
  RowPointers(const std::int8_t* values, std::size_t stride) : stride_(stride) {
    for (std::size_t group = 0; group < kGroups; ++group) {
      groups_[group] = values + group * kGroupRows * stride;
      asm("" : "+r"(groups_[group]));  // compilers that know what they have in common make addresses of it
    }
  }

  // Row m's bytes, `offset` on.
  const std::int8_t* at(std::size_t m, std::size_t offset) const {
    return groups_[m / kGroupRows] + m % kGroupRows * stride_ + offset;
  }
  // Four of them in every lane.
  Bytes four(std::size_t m, std::size_t offset) const { return in_all_lanes(at(m, offset)); }

  void advance(std::size_t count) {
    for (auto& group : groups_) group += count;
  }

 private:
  static constexpr std::size_t kGroupRows = 4, kGroups = (kRows + kGroupRows - 1) / kGroupRows;
  const std::int8_t* groups_[kGroups];
  std::size_t stride_;
};

// Vectors of four inputs each of a panel's outputs, from packed weights: inputs in low halves, and in high halves.
struct UnpackedHalves {
  Bytes of[2][kPanelVectors];

  explicit UnpackedHalves(const std::int8_t* packed) {
#pragma GCC unroll 2
    for (std::size_t i = 0; i < kPanelVectors; ++i) {
      const Bytes bytes = load_bytes(packed + i * kVector);
      of[0][i] = low_halves(bytes);
      of[1][i] = high_halves(bytes);
    }
  }
};

// Where the products with a panel go, and the outputs' scales (J,) that they are multiplied by.
class PanelOutputs {
 public:
  PanelOutputs(float* output, std::size_t num_outputs, std::size_t panel, const float* scales)
      : first_(output + panel * kPanelOutputs), num_outputs_(num_outputs) {
    for (std::size_t i = 0; i < kPanelVectors; ++i) {
      const std::size_t begin = panel * kPanelOutputs + i * kLanes;
      lanes_[i] = first_lanes(num_outputs > begin ? num_outputs - begin : 0);
      scales_[i] = load(scales + begin, lanes_[i]);
    }
  }

  // place: the row of the output that is meant.
  void store_row(std::size_t place, float row_scale, const Ints (&sums)[kPanelVectors]) const {
    for (std::size_t i = 0; i < kPanelVectors; ++i) {
      const Floats product = number_of(sums[i]) * scales_[i] * all(row_scale);
      store(first_ + place * num_outputs_ + i * kLanes, product, lanes_[i]);
    }
  }

  // The same of a row in two planes.
  void store_row(std::size_t place, float row_scale, const Ints (&high)[kPanelVectors],
                 const Ints (&low)[kPanelVectors]) const {
    for (std::size_t i = 0; i < kPanelVectors; ++i) {
      const Floats product = number_of(high[i]) * scales_[i] * all(1.0f * kBase) + number_of(low[i]) * scales_[i];
      store(first_ + place * num_outputs_ + i * kLanes, product * all(row_scale), lanes_[i]);
    }
  }

 private:
  float* first_;
  std::size_t num_outputs_;
  Floats scales_[kPanelVectors];
  Lanes lanes_[kPanelVectors];
};

}  // namespace reader_edge::READER_EDGE_LANES
