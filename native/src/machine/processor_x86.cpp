// Intel's manual, CPUID: leaf 1, leaf 7 with its first sub-leaf, and XGETBV: which registers the system saves. Linux's
// Documentation/arch/x86/xstate.rst: tiles are for processes that ask.
#if defined(__x86_64__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdint>

#include "machine/processor.h"

namespace reader_edge {
namespace {

constexpr std::uint64_t kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;  // with those that they extend

struct Leaf {
  unsigned a = 0, b = 0, c = 0, d = 0;

  explicit Leaf(unsigned leaf, unsigned sub_leaf = 0) { __get_cpuid_count(leaf, sub_leaf, &a, &b, &c, &d); }
};

bool has_bit(unsigned word, int bit) { return (word >> bit & 1) != 0; }

bool saves(std::uint64_t registers) {
  if (!has_bit(Leaf(1).c, 27)) return false;  // the system has not turned XGETBV on
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return ((std::uint64_t{high} << 32 | low) & registers) == registers;
}

}  // namespace

bool has_avx2() {
  const Leaf one(1), seven(7);
  return saves(kYmm) && has_bit(one.c, 12) && has_bit(one.c, 28) && has_bit(one.c, 29) && has_bit(seven.b, 5);
}

#ifdef READER_EDGE_EMULATED  // compiled for AVX2
bool has_avx_vnni() { return has_avx2(); }
bool has_avx512_vnni() { return has_avx2(); }
bool has_amx() { return false; }
#else
bool has_avx_vnni() { return has_avx2() && Leaf(7).a >= 1 && has_bit(Leaf(7, 1).a, 4); }

bool has_avx512_vnni() {
  const Leaf seven(7);  // F, DQ, BW, VL; VNNI
  return has_avx2() && saves(kZmm) && has_bit(seven.b, 16) && has_bit(seven.b, 17) && has_bit(seven.b, 30) &&
         has_bit(seven.b, 31) && has_bit(seven.c, 11);
}

bool has_amx() {
#ifdef __linux__
  constexpr long kAskForRegisters = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  const Leaf seven(7);                                       // tiles; their products of bytes
  return has_avx512_vnni() && saves(kTiles) && has_bit(seven.d, 24) && has_bit(seven.d, 25) &&
         syscall(SYS_arch_prctl, kAskForRegisters, kTileData) == 0;
#else
  return false;
#endif
}
#endif

}  // namespace reader_edge
#endif
