// Memory that a thread keeps from call to call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace reader_edge {

// Grown to the longest request seen. Kernels use it, too, so that what has code is not inline: it would be compiled with
// instructions that this processor may not have.
class Scratch {
 public:
  Scratch();
  ~Scratch();

  // `size` elements at a multiple of 64 bytes, with whatever they hold; until the next call.
  template <class Element>
  Element* take(std::int64_t size) {
    return static_cast<Element*>(take_bytes(static_cast<std::size_t>(size) * sizeof(Element)));
  }

 private:
  void* take_bytes(std::size_t size);

  std::vector<std::int8_t> buffer_;
};

}  // namespace reader_edge
