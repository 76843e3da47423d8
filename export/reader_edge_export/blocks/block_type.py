"""The table of the block types of GGUF files that stay as they are: whatever handles a type reads its row.

`native_header` writes the table in C++. To add a type, add a row and generate the header again. Two tests then compare:
bytes and values with the package gguf (tests/export/quantize/test_gguf_products.py), products with exact ones
(tests/runtime/execution/native/test_gguf_products.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockType:
    """Blocks of `num_inputs` inputs of an output. A weight is scale * (level - zero), or scale * level + minimum.

    name: GGUF's. bits: of a code. levels: what codes stand for; () where for themselves. zero: the level of nought.
    blocks_per_super_block: blocks that share numbers in fp16; of several, each has integers that multiply these.

    In a file, a unit is a block, or the blocks that share numbers (ggml-common.h of llama.cpp).
    fields: of a unit, in order, their bytes; "m" are minima (dmin), "qs" the low bits of codes, "qh" what is above.
    "e" in place of "d" is an exponent: the scale is 2 ** (e - 128). "scales_h" and "scales_l" are two and four bits of
    integers that count from -32 on.
    qs_run, qh_run: codes lie in runs of so many bytes: first the lowest bits of all bytes of a run, then the next.
    """

    name: str
    num_inputs: int
    bits: int
    zero: int
    fields: Mapping[str, int]
    qs_run: int
    qh_run: int = 0
    blocks_per_super_block: int = 1
    levels: tuple[int, ...] = ()

    @property
    def has_exponents(self) -> bool:
        return "e" in self.fields

    @property
    def has_minima(self) -> bool:
        return "m" in self.fields

    @property
    def has_signed_scales(self) -> bool:
        """Whether the integers that multiply shared scales have a sign: where no minimum makes up for one."""
        return self.blocks_per_super_block > 1 and not self.has_minima

    @property
    def qh_bits(self) -> int:
        """Of a code, what does not fit half a byte and lies apart."""
        return self.bits - 4 if self.bits < 8 else 0

    @property
    def unit_inputs(self) -> int:
        """Inputs of a unit in a file."""
        return self.num_inputs * self.blocks_per_super_block

    @property
    def unit_bytes(self) -> int:
        """Bytes of a unit in a file."""
        return sum(self.fields.values())

    def num_bytes(self, num_weights: int) -> int:
        """Of so many weights as `Blocks` has them."""
        if self.has_exponents:
            return num_weights * self.bits // 8 + num_weights // self.num_inputs
        num_codes = num_weights // self.num_inputs if self.blocks_per_super_block > 1 else 0
        num_numbers = num_weights // self.unit_inputs
        return num_weights * self.bits // 8 + (num_codes + 2 * num_numbers) * (2 if self.has_minima else 1)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the arrays that a matrix consists of, see `Blocks`."""
        names = ["qs", "qh"] if self.qh_bits else ["qs"]
        if self.has_exponents:
            return (*names, "scale_exponents")
        for name in ("scale", "minimum") if self.has_minima else ("scale",):
            names += [f"{name}_numbers", f"{name}_codes"] if self.blocks_per_super_block > 1 else [f"{name}_numbers"]
        return tuple(names)


# Twice the numbers of E2M1, which a scale has half of, from -12 on: https://www.opencompute.org, Microscaling Formats.
_E2M1_LEVELS = (12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0)
# Of llama.cpp's IQ4 (kvalues_iq4nl of ggml-common.h), 128 more.
_IQ4_LEVELS = (1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241)

BLOCK_TYPES = {
    block_type.name: block_type
    for block_type in (
        BlockType("Q4_0", 32, 4, 8, {"d": 2, "qs": 16}, 16),
        BlockType("Q4_1", 32, 4, 0, {"d": 2, "m": 2, "qs": 16}, 16),
        BlockType("Q5_0", 32, 5, 16, {"d": 2, "qh": 4, "qs": 16}, 16, 1),
        BlockType("Q5_1", 32, 5, 0, {"d": 2, "m": 2, "qh": 4, "qs": 16}, 16, 1),
        BlockType("Q8_0", 32, 8, 128, {"d": 2, "qs": 32}, 32),
        BlockType("Q4_K", 32, 4, 0, {"d": 2, "m": 2, "scales": 12, "qs": 128}, 32, blocks_per_super_block=8),
        BlockType(
            "Q5_K", 32, 5, 0, {"d": 2, "m": 2, "scales": 12, "qh": 32, "qs": 128}, 32, 32, blocks_per_super_block=8
        ),
        BlockType("Q6_K", 16, 6, 32, {"qs": 128, "qh": 64, "scales": 16, "d": 2}, 64, 32, blocks_per_super_block=16),
        BlockType("MXFP4", 32, 4, 12, {"e": 1, "qs": 16}, 16, levels=_E2M1_LEVELS),
        BlockType("IQ4_NL", 32, 4, 128, {"d": 2, "qs": 16}, 16, levels=_IQ4_LEVELS),
        BlockType(
            *("IQ4_XS", 32, 4, 128, {"d": 2, "scales_h": 2, "scales_l": 4, "qs": 128}, 16),
            blocks_per_super_block=8,
            levels=_IQ4_LEVELS,
        ),
    )
}
