#include "cache/cache_rows.h"

#include <stdexcept>

#include "kernels.h"
#include "machine/scratch.h"

namespace reader_edge {
namespace {

constexpr std::size_t kVectorFloats = 16;           // memory is written in vectors
constexpr std::size_t kSerialElements = 16 * 1024;  // fewer are not worth waking threads

}  // namespace

void CacheRows::compute(KernelCall& call) const {
  const auto key = call.input<float>(0), value = call.input<float>(3);
  const std::size_t rank = key.sizes.size(), size = rotation_.num_inputs();
  if (rank == 0 || key.size(rank - 1) != size || key.sizes != value.sizes) {
    throw std::invalid_argument("CacheRows: sizes of key, value and smoothing do not fit");
  }
  auto sizes = key.sizes;
  sizes.back() += kMagnitudeBytes;
  std::int8_t* const keys = call.output<std::int8_t>(0, sizes).data;
  std::int8_t* const values = call.output<std::int8_t>(1, sizes).data;
  const std::size_t num_rows = key.count(0, rank - 1), row_bytes = size + kMagnitudeBytes;
  const auto write_row = [&](std::size_t row) {
    thread_local Scratch scratch;
    float* const rotated = scratch.take<float>(static_cast<std::int64_t>(size + kVectorFloats));
    const float largest = rotation_.apply(key.data + row * size, rotated);
    kernels().cache_rows.round(rotated, size, largest, keys + row * row_bytes);
    const float* const plain = value.data + row * size;
    kernels().cache_rows.round(plain, size, kernels().cache_rows.largest(plain, size), values + row * row_bytes);
  };
  if (num_rows * size <= kSerialElements) {
    for (std::size_t row = 0; row < num_rows; ++row) write_row(row);
  } else {
    call.parallel_for(num_rows, write_row);
  }
}

}  // namespace reader_edge
