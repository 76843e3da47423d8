// From which input on a node holds its matrices, and what it is called in errors about them.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace reader_edge {

// Whose name, from which input on, and whether they are stacked, one for each expert.
struct MatrixPlace {
  const char* op;
  std::size_t first;
  bool is_stacked;

  [[noreturn]] void refuse(const char* reason) const { throw std::invalid_argument(std::string(op) + ": " + reason); }
};

}  // namespace reader_edge
