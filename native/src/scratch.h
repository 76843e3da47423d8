// Memory that a thread keeps from call to call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace reader_edge {

// Grown to the longest request seen.
template <class T>
class Scratch {
 public:
  // `size` elements at a multiple of 64 bytes, with whatever they hold; until the next call.
  T* take(std::int64_t size) {
    buffer_.resize(std::max(buffer_.size(), static_cast<std::size_t>(size) + 64 / sizeof(T)));
    return reinterpret_cast<T*>((reinterpret_cast<std::uintptr_t>(buffer_.data()) + 63) / 64 * 64);
  }

 private:
  std::vector<T> buffer_;
};

}  // namespace reader_edge
