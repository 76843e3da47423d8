// The instruction sets that this library has kernels for, and which of them is in use.
#pragma once

#include <string>

#include "kernels.h"

namespace reader_edge {

struct InstructionSet {
  const char* name;
  bool (*is_here)();  // in this processor, and kept by its system
  const Kernels* kernels;
};

// set: the best that is here, or the one that READER_EDGE_INSTRUCTIONS names; none where there is no such. refusal: what
// is wrong with that name, as a sentence, or empty.
struct Choice {
  const InstructionSet* set;
  std::string refusal;
};

// Made when the library is loaded.
const Choice& choice();

// Names of the sets that are here, the best first, with commas between them.
const std::string& names_here();

}  // namespace reader_edge
