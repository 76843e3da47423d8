// All kernels of AMX in one table: those of AVX-512 with VNNI but for products of many rows with int8 weights, with weights
// of four bits, and with an int8 KV cache.
#include "kernels.h"

namespace reader_edge {

namespace avx512_vnni {
extern const RowRounding row_rounding;
extern const GgufKernels gguf_kernels;
extern const HadamardKernels hadamard_kernels;
extern const RotaryKernels rotary_kernels;
extern const SwiGluKernels swiglu_kernels;
extern const AttentionKernels attention_kernels;
extern const HalfRowKernels half_row_kernels;
extern const CacheRowKernels cache_row_kernels;
extern const RecurrenceKernels recurrence_kernels;
extern const ConvKernels conv_kernels;
}  // namespace avx512_vnni

namespace amx {

using namespace avx512_vnni;

extern const RowKernels row_kernels;
extern const BlockKernels block_kernels;
extern const ByteScoreKernels byte_score_kernels;
extern const ByteSumKernels byte_sum_kernels;

extern const Kernels kernels_of_set{row_rounding,      row_kernels,        block_kernels,     gguf_kernels,
                                    hadamard_kernels,    rotary_kernels,     swiglu_kernels,    attention_kernels,
                                    half_row_kernels,  cache_row_kernels,  byte_score_kernels, byte_sum_kernels,
                                    recurrence_kernels, conv_kernels};

}  // namespace amx
}  // namespace reader_edge
