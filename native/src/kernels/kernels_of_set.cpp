// All kernels of one instruction set, in one table.
#include "kernels.h"

namespace reader_edge::READER_EDGE_LANES {

extern const RowRounding row_rounding;
extern const RowKernels row_kernels;
extern const BlockKernels block_kernels;
extern const GgufKernels gguf_kernels;
extern const HadamardKernels hadamard_kernels;
extern const RotaryKernels rotary_kernels;
extern const SwiGluKernels swiglu_kernels;
extern const AttentionKernels attention_kernels;
extern const HalfRowKernels half_row_kernels;
extern const CacheRowKernels cache_row_kernels;
extern const ByteScoreKernels byte_score_kernels;
extern const ByteSumKernels byte_sum_kernels;
extern const RecurrenceKernels recurrence_kernels;
extern const ConvKernels conv_kernels;

extern const Kernels kernels_of_set{row_rounding, row_kernels, block_kernels,      gguf_kernels,    hadamard_kernels,
                                    rotary_kernels,    swiglu_kernels,     attention_kernels, half_row_kernels,
                                    cache_row_kernels, byte_score_kernels, byte_sum_kernels,
                                    recurrence_kernels, conv_kernels};

}  // namespace reader_edge::READER_EDGE_LANES
