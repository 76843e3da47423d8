// Many rows times a panel of a 4-bit matrix, whose weights are unpacked to bytes once for all of them.
#pragma once

#include <cstddef>

#include "block_lanes.h"
#include "block_product.h"

namespace reader_edge {

constexpr std::size_t kUnpackRows = 17;  // where it begins to pay: fewer rows read the packed weights twice at most
constexpr int kUnpackedZero = 128;       // what is added to an unpacked weight

void multiply_unpacked(const BlockRows& rows, const BlockWeight& weight, std::size_t panel,
                       const PanelOutputs& outputs);

}  // namespace reader_edge
