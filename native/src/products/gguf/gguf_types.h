// The block types of GGUF files, which reader_edge_export/blocks/block_type.py has.
// It is written by: python -m reader_edge_export.blocks.native_header > native/src/products/gguf/gguf_types.h
#pragma once

#include "products/gguf/gguf_type.h"

namespace reader_edge {

inline constexpr GgufType kQ4_0{"Q4_0Linear", 32, 4, 8, false, false, 1};
inline constexpr GgufType kQ4_1{"Q4_1Linear", 32, 4, 0, true, false, 1};
inline constexpr GgufType kQ5_0{"Q5_0Linear", 32, 5, 16, false, false, 1};
inline constexpr GgufType kQ5_1{"Q5_1Linear", 32, 5, 0, true, false, 1};
inline constexpr GgufType kQ8_0{"Q8_0Linear", 32, 8, 128, false, false, 1};
inline constexpr GgufType kQ4_K{"Q4_KLinear", 32, 4, 0, true, false, 8};
inline constexpr GgufType kQ5_K{"Q5_KLinear", 32, 5, 0, true, false, 8};
inline constexpr GgufType kQ6_K{"Q6_KLinear", 16, 6, 32, false, true, 16};
inline constexpr std::uint8_t kMXFP4Levels[]{12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
inline constexpr GgufType kMXFP4{"MXFP4Linear", 32, 4, 12, false, false, 1, true, kMXFP4Levels};
inline constexpr std::uint8_t kIQ4_NLLevels[]{1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
inline constexpr GgufType kIQ4_NL{"IQ4_NLLinear", 32, 4, 128, false, false, 1, false, kIQ4_NLLevels};
inline constexpr std::uint8_t kIQ4_XSLevels[]{1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
inline constexpr GgufType kIQ4_XS{"IQ4_XSLinear", 32, 4, 128, false, true, 8, false, kIQ4_XSLevels};

// All of them.
using AllGgufTypes = GgufTypes<kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K, kMXFP4, kIQ4_NL, kIQ4_XS>;

}  // namespace reader_edge
