#include "products.h"
namespace reader_edge {
extern const ProductKernels kAvx512Kernels;
const ProductKernels& product_kernels() { return kAvx512Kernels; }
}
