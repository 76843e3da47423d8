// All kernels of one instruction set, in one table.
#include "kernels.h"

#ifndef READER_EDGE_OTHERS  // the set that has those that this one does not have of its own
#define READER_EDGE_OTHERS READER_EDGE_LANES
#endif

namespace reader_edge {

namespace READER_EDGE_OTHERS {
extern const RowRounding row_rounding;
extern const RowKernels row_kernels;
extern const BlockKernels block_kernels;
extern const GgufKernels gguf_kernels;
extern const HadamardKernels hadamard_kernels;
extern const RotaryKernels rotary_kernels;
extern const SwiGluKernels swiglu_kernels;
extern const LowRankKernels low_rank_kernels;
extern const AttentionKernels attention_kernels;
extern const HalfRowKernels half_row_kernels;
extern const CacheRowKernels cache_row_kernels;
extern const Int8CacheScoreKernels int8_cache_score_kernels;
extern const Int8CacheWeightKernels int8_cache_weight_kernels;
extern const Int8CacheSumKernels int8_cache_sum_kernels;
extern const RecurrenceKernels recurrence_kernels;
extern const ConvKernels conv_kernels;
}  // namespace READER_EDGE_OTHERS

namespace READER_EDGE_LANES {

using namespace READER_EDGE_OTHERS;

extern const Kernels kernels_of_set{row_rounding,
                                    row_kernels,
                                    block_kernels,
                                    gguf_kernels,
                                    hadamard_kernels,
                                    rotary_kernels,
                                    swiglu_kernels,
                                    low_rank_kernels,
                                    attention_kernels,
                                    half_row_kernels,
                                    cache_row_kernels,
                                    int8_cache_score_kernels,
                                    int8_cache_weight_kernels,
                                    int8_cache_sum_kernels,
                                    recurrence_kernels,
                                    conv_kernels};

}  // namespace READER_EDGE_LANES
}  // namespace reader_edge
