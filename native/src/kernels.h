// The kernels of an instruction set. They are compiled once for each, and chosen once, when the library is first asked.
#pragma once

#include "attention.h"
#include "block_product.h"
#include "cache_rows.h"
#include "gguf_product.h"
#include "half_rows.h"
#include "int8_rows.h"
#include "recurrence.h"
#include "rotary_heads.h"
#include "row_product.h"
#include "row_rounding.h"
#include "hadamard.h"
#include "swiglu.h"
#include "tree_conv.h"

namespace reader_edge {

struct Kernels {
  const RowRounding& rounding;
  const RowKernels& rows;
  const BlockKernels& blocks;
  const GgufKernels& gguf;
  const HadamardKernels& hadamard;
  const RotaryKernels& rotary;
  const SwiGluKernels& swiglu;
  const AttentionKernels& attention;
  const HalfRowKernels& half_rows;
  const CacheRowKernels& cache_rows;
  const ByteScoreKernels& byte_scores;
  const ByteSumKernels& byte_sums;
  const RecurrenceKernels& recurrence;
  const ConvKernels& conv;
};

// Those of the set in use. Throws std::runtime_error where there is none.
const Kernels& kernels();

}  // namespace reader_edge
