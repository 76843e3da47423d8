// Memory that weights are read from: in huge pages where the system has them, which are read up to half faster.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <vector>

namespace reader_edge {

// `size` zeroed bytes at a multiple of 64; small pieces share huge pages. Throws std::bad_alloc.
std::shared_ptr<std::int8_t> weight_memory(std::size_t size);

// Arrays of rows that are read once, from the first row to the last. Pages of those that are mapped from a file are taken
// out of this process's memory behind the reader: at most a few megabytes are there twice. They come from the file again
// when they are wanted. Memory that is no file's is left alone.
class PassingRows {
 public:
  struct Array {
    const void* begin;  // null where there is none
    std::size_t row_bytes;
  };
  // Rows [first, last) of the arrays, which begin with row 0.
  PassingRows(std::initializer_list<Array> arrays, std::size_t first, std::size_t last);

  // The rows before this one have been read.
  void passed(std::size_t row);

 private:
  std::vector<Array> mapped_;
  std::size_t first_, last_, row_bytes_ = 0, forgotten_;
};

// Do `work(first, last)` for ranges of outputs that begin with a panel, on all cores. Throws what the work throws.
void pack_on_all_cores(std::size_t num_outputs, std::size_t panel_outputs,
                       const std::function<void(std::size_t first, std::size_t last)>& work);

}  // namespace reader_edge
