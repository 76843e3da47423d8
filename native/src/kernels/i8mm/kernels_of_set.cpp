// All kernels of NEON with products of matrices in one table: those of dot products but for products with int8 weights.
#include "kernels.h"

// Declared here, it hides that of the other set.
namespace reader_edge::neon_i8mm {
extern const RowKernels row_kernels;
}  // namespace reader_edge::neon_i8mm

#define READER_EDGE_OTHERS neon_dot
#include "kernels/kernels_of_set.cpp"
