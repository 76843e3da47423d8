// The kernels of an instruction set. They are compiled once for each, and chosen once, when the library is first used.
#pragma once

#include "adapters/low_rank_rows.h"
#include "attention/attention.h"
#include "attention/int8_cache_steps.h"
#include "cache/cache_rows.h"
#include "cache/half_rows.h"
#include "fusion/rotary_heads.h"
#include "fusion/swiglu.h"
#include "products/blocks/block_product.h"
#include "products/gguf/gguf_product.h"
#include "products/rows/row_product.h"
#include "recurrence/recurrence.h"
#include "recurrence/tree_conv.h"
#include "rounding/hadamard.h"
#include "rounding/row_rounding.h"

namespace reader_edge {

struct Kernels {
  const RowRounding& rounding;
  const RowKernels& rows;
  const BlockKernels& blocks;
  const GgufKernels& gguf;
  const HadamardKernels& hadamard;
  const RotaryKernels& rotary;
  const SwiGluKernels& swiglu;
  const LowRankKernels& low_rank;
  const AttentionKernels& attention;
  const HalfRowKernels& half_rows;
  const CacheRowKernels& cache_rows;
  const Int8CacheScoreKernels& int8_cache_scores;
  const Int8CacheWeightKernels& int8_cache_weights;
  const Int8CacheSumKernels& int8_cache_sums;
  const RecurrenceKernels& recurrence;
  const ConvKernels& conv;
};

// Those of the set in use. Throws std::runtime_error where there is none.
const Kernels& kernels();

}  // namespace reader_edge
