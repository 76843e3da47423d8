#include "machine/instruction_sets.h"

#include <cstdlib>
#include <stdexcept>

#include "machine/processor.h"

namespace reader_edge {

#define DECLARED(NAMESPACE) \
  namespace NAMESPACE {     \
  extern const Kernels kernels_of_set; \
  }
#if defined(__x86_64__)
DECLARED(amx)
DECLARED(avx512_vnni)
DECLARED(avx_vnni)
DECLARED(avx2)
#elif defined(__aarch64__)
DECLARED(neon_i8mm)
DECLARED(neon_dot)
DECLARED(neon)
#endif
#undef DECLARED

namespace {

constexpr const char* kVariable = "READER_EDGE_INSTRUCTIONS";

// The best first.
const InstructionSet kSets[] = {
#if defined(__x86_64__)
    {"amx", has_amx, &amx::kernels_of_set},
    {"avx512-vnni", has_avx512_vnni, &avx512_vnni::kernels_of_set},
    {"avx-vnni", has_avx_vnni, &avx_vnni::kernels_of_set},
    {"avx2", has_avx2, &avx2::kernels_of_set},
#elif defined(__aarch64__)
    {"neon-i8mm", has_neon_i8mm, &neon_i8mm::kernels_of_set},
    {"neon-dot", has_neon_dot, &neon_dot::kernels_of_set},
    {"neon", has_neon, &neon::kernels_of_set},
#endif
};

std::string found_names() {
  std::string names;
  for (const InstructionSet& set : kSets) {
    if (set.is_here()) names += (names.empty() ? "" : ",") + std::string(set.name);
  }
  return names;
}

Choice chosen() {
  const char* const wanted = std::getenv(kVariable);
  const bool is_forced = wanted != nullptr && *wanted != '\0';
  for (const InstructionSet& set : kSets) {
    if ((!is_forced || std::string(wanted) == set.name) && set.is_here()) return {&set, {}};
  }
  if (!is_forced) return {nullptr, {}};
  const std::string here = found_names();
  const std::string remedy = (here.empty() ? "" : "set it to one of " + here + ", or ") + "leave it unset.";
  for (const InstructionSet& set : kSets) {
    if (std::string(wanted) == set.name) {
      return {nullptr, std::string(kVariable) + " is '" + wanted + "', which this processor or its system does not have: " + remedy};
    }
  }
  return {nullptr, std::string(kVariable) + " is '" + wanted + "', which is no instruction set: " + remedy};
}

const Choice kChoice = chosen();

}  // namespace

const Choice& choice() { return kChoice; }

const std::string& names_here() {
  static const std::string names = found_names();
  return names;
}

const Kernels& kernels() {
  if (kChoice.set == nullptr) throw std::runtime_error("reader-edge-native has no kernels for this processor");
  return *kChoice.set->kernels;
}

}  // namespace reader_edge
