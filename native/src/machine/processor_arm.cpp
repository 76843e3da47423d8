// What the system says of an ARM processor: on Linux two words of the auxiliary vector, on macOS a name for each feature.
// Elsewhere nothing is queried: ARMv8's own instructions serve.
#if defined(__aarch64__)
#include "machine/processor.h"

#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>

#include <cstddef>
#endif

namespace reader_edge {

#if defined(__linux__)

bool has_neon_dot() { return (getauxval(AT_HWCAP) >> 20 & 1) != 0; }  // HWCAP_ASIMDDP
bool has_neon_i8mm() { return has_neon_dot() && (getauxval(AT_HWCAP2) >> 13 & 1) != 0; }  // HWCAP2_I8MM

#elif defined(__APPLE__)

namespace {

bool has_feature(const char* name) {
  int value = 0;
  std::size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}

}  // namespace

bool has_neon_dot() { return has_feature("hw.optional.arm.FEAT_DotProd"); }
bool has_neon_i8mm() { return has_neon_dot() && has_feature("hw.optional.arm.FEAT_I8MM"); }

#else

bool has_neon_dot() { return false; }
bool has_neon_i8mm() { return false; }

#endif

bool has_neon() { return true; }

}  // namespace reader_edge
#endif
