// Memory that weights are read from: in huge pages where the system has them, which are read up to half faster.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace reader_edge {

// `size` zeroed bytes at a multiple of 64; small pieces share huge pages. Throws std::bad_alloc.
std::shared_ptr<std::int8_t> weight_memory(std::size_t size);

// Take [begin, begin + size) out of this process's memory, but for the edges, where it is mapped from a file: it is
// read from there again when wanted. Memory that is not is left alone.
void forget_file_pages(const void* begin, std::size_t size);

}  // namespace reader_edge
