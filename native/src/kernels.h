// The kernels of an instruction set. They are compiled once for each, and chosen once, when the library is first asked.
#pragma once

#include "block_product.h"
#include "gguf_product.h"
#include "rotary_heads.h"
#include "row_product.h"
#include "spread.h"
#include "swiglu.h"

namespace reader_edge {

struct Kernels {
  const RowKernels& rows;
  const BlockKernels& blocks;
  const GgufKernels& gguf;
  const SpreadKernels& spread;
  const RotaryKernels& rotary;
  const SwiGluKernels& swiglu;
};

// Those of the set in use. Throws std::runtime_error where there is none.
const Kernels& kernels();

}  // namespace reader_edge
