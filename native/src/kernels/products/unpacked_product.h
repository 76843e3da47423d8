// Many rows times a panel of a 4-bit matrix, whose weights are unpacked to bytes once for all of them: fewer rows than
// kUnpackRows read the packed weights twice at most.
#pragma once

#include <cstddef>

#include "kernels/products/block_lanes.h"
#include "products/blocks/block_product.h"

namespace reader_edge::READER_EDGE_LANES {

void multiply_unpacked(const BlockRows& rows, const BlockWeight& weight, std::size_t panel,
                       const PanelOutputs& outputs);

}  // namespace reader_edge::READER_EDGE_LANES
