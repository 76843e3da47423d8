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

// Arrays of rows that are read once. Pages of those that are mapped from a file are taken out of this process's memory
// behind the reader: at most a few megabytes are there twice. They come from the file again when they are wanted. Memory
// that is no file's is left alone.
class PassingRows {
 public:
  struct Array {
    const void* begin;  // null where there is none
    std::size_t row_bytes;
  };
  PassingRows(std::initializer_list<Array> arrays, std::size_t num_rows);

  // Call `read` with each row, on all cores, each core's rows in turn from the first of a panel on. Throws what it throws.
  void read_all(std::size_t panel_rows, const std::function<void(std::size_t row)>& read) const;

 private:
  void read_range(std::size_t first, std::size_t last, const std::function<void(std::size_t row)>& read) const;
  void forget(std::size_t first, std::size_t last) const;

  std::vector<Array> mapped_;
  std::size_t num_rows_, row_bytes_ = 0;
};

}  // namespace reader_edge
