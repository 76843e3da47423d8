// Memory that a thread keeps from call to call.
#include "machine/scratch.h"

#include <algorithm>

namespace reader_edge {

constexpr std::size_t kAlignment = 64;

Scratch::Scratch() = default;
Scratch::~Scratch() = default;

void* Scratch::take_bytes(std::size_t size) {
  buffer_.resize(std::max(buffer_.size(), size + kAlignment));
  return reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(buffer_.data()) + kAlignment - 1) / kAlignment * kAlignment);
}

}  // namespace reader_edge
