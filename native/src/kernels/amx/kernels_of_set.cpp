// All kernels of AMX in one table: those of AVX-512 with VNNI but for products of many rows with int8 weights, with weights
// of four bits, and with an int8 KV cache.
#include "kernels.h"

// Declared here, they hide those of the other set.
namespace reader_edge::amx {
extern const RowKernels row_kernels;
extern const BlockKernels block_kernels;
extern const Int8CacheScoreKernels int8_cache_score_kernels;
extern const Int8CacheSumKernels int8_cache_sum_kernels;
}  // namespace reader_edge::amx

#define READER_EDGE_OTHERS avx512_vnni
#include "kernels/kernels_of_set.cpp"
