"""Writes the table of block types as a C++ header, gguf_types.h.

python -m reader_edge_export.blocks.native_header > native/src/products/gguf/gguf_types.h
"""

import sys

from reader_edge_export.blocks.block_type import BLOCK_TYPES, BlockType

_HEADER = """\
// The block types of GGUF files, which reader_edge_export/blocks/block_type.py has.
// It is written by: python -m reader_edge_export.blocks.native_header > native/src/products/gguf/gguf_types.h
#pragma once

#include "products/gguf/gguf_type.h"

namespace reader_edge {{

{types}

// All of them.
using AllGgufTypes = GgufTypes<{names}>;

}}  // namespace reader_edge
"""


def header() -> str:
    """native/src/products/gguf/gguf_types.h"""
    types = "\n".join(line for row in BLOCK_TYPES.values() for line in _lines(row))
    return _HEADER.format(types=types, names=", ".join(f"k{name}" for name in BLOCK_TYPES))


def _lines(row: BlockType) -> list[str]:
    type_line = f"inline constexpr GgufType k{row.name}{{{_members(row)}}};"
    if not row.levels:
        return [type_line]
    levels = ", ".join(map(str, row.levels))
    return [f"inline constexpr std::uint8_t k{row.name}Levels[]{{{levels}}};", type_line]


def _members(row: BlockType) -> str:
    """In the order of GgufType's."""
    flags = [str(flag).lower() for flag in (row.has_minima, row.has_signed_scales)]
    members = [f'"{row.name}Linear"', row.num_inputs, row.bits, row.zero, *flags, row.blocks_per_super_block]
    if row.levels:
        members += [str(row.has_exponents).lower(), f"k{row.name}Levels"]
    return ", ".join(map(str, members))


if __name__ == "__main__":
    sys.stdout.write(header())
