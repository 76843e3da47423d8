// All kernels of NEON with products of matrices in one table: those of dot products but for products with int8 weights.
#include "kernels.h"

namespace reader_edge {

namespace neon_dot {
extern const RowRounding row_rounding;
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
}  // namespace neon_dot

namespace neon_i8mm {

using namespace neon_dot;

extern const RowKernels row_kernels;

extern const Kernels kernels_of_set{row_rounding,      row_kernels,        block_kernels,     gguf_kernels,
                                    hadamard_kernels,    rotary_kernels,     swiglu_kernels,    attention_kernels,
                                    half_row_kernels,  cache_row_kernels,  byte_score_kernels, byte_sum_kernels,
                                    recurrence_kernels, conv_kernels};

}  // namespace neon_i8mm
}  // namespace reader_edge
