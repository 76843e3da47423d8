// Instruction sets that the processor has and whose registers the operating system saves.
#pragma once

namespace reader_edge {

#if defined(__x86_64__)
bool has_amx();  // for bytes; asks the system for it
bool has_avx512_vnni();
bool has_avx_vnni();
bool has_avx2();  // with FMA and fp16
#elif defined(__aarch64__)
bool has_neon();
bool has_neon_dot();
bool has_neon_i8mm();  // with dot products
#endif

}  // namespace reader_edge
