"""A matrix in GGUF's block formats, unpacked: codes of a few bits, and scales of blocks of inputs.

Each product of a scale is exact in fp32, so that one rounding is left, that of the sum: values are those of llama.cpp
and of the package gguf bit for bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf.quants import Q4_K

from reader_edge_export.blocks.block_type import BlockType
from reader_edge_runtime.arrays import Array, Float32Array, UInt8Array

_LARGEST_EXPONENT = 252  # of a power of two that a level of 12 multiplies
_Fields = dict[str, UInt8Array]  # each (J, units, bytes)


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix (J, K) in blocks of n inputs; arrays: by the names of its type's `parts`, all with J first.

    qs: uint8 (J, blocks, n / 2), two codes a byte, the first in its low half; (J, blocks, n) with eight bits.
    qh: uint8 (J, blocks, n h / 8), the h bits of a code above four, those of the first input lowest.
    scale_numbers, minimum_numbers: float16 (J, blocks), or (J, super-blocks) and then integers, scale_codes and
    minimum_codes (J, blocks), that multiply them.
    scale_exponents: uint8 (J, blocks), in place of numbers where scales are powers of two, 128 more.
    """

    block_type: BlockType
    arrays: Mapping[str, Array]

    @classmethod
    def joined(cls, parts: Sequence["Blocks"]) -> "Blocks":
        """Matrices of one type and the same inputs, one's outputs after the other's."""
        first = parts[0]
        if len(parts) == 1:
            return first
        arrays = {name: np.concatenate([part.arrays[name] for part in parts]) for name in first.arrays}
        return cls(first.block_type, arrays)

    @property
    def shape(self) -> tuple[int, int]:
        """(J, K)"""
        num_outputs, num_blocks = self.arrays["qs"].shape[:2]
        return num_outputs, num_blocks * self.block_type.num_inputs

    @property
    def is_finite(self) -> bool:
        """Whether all weights are numbers that fp32 has."""
        if self.block_type.has_exponents:
            return not (self.arrays["scale_exponents"] > _LARGEST_EXPONENT).any()
        return all(np.isfinite(array).all() for array in self.arrays.values() if array.dtype == np.float16)

    def codes(self) -> UInt8Array:
        """(J, blocks, n)"""
        qs = self.arrays["qs"]
        if self.block_type.bits == 8:
            return qs
        codes = np.stack([qs & np.uint8(15), qs >> np.uint8(4)], axis=-1).reshape(*qs.shape[:2], -1)
        if bits := self.block_type.qh_bits:
            shifts = np.arange(0, 8, bits, dtype=np.uint8)
            qh = (self.arrays["qh"][..., None] >> shifts) & np.uint8(2**bits - 1)
            codes |= qh.reshape(codes.shape) << np.uint8(4)
        return codes

    def levels(self) -> UInt8Array:
        """(J, blocks, n): what codes stand for."""
        codes = self.codes()
        return np.array(self.block_type.levels, np.uint8)[codes] if self.block_type.levels else codes

    def dequantized(self, outputs: slice) -> Float32Array:
        """Weights (j, K) of some outputs."""
        part = Blocks(self.block_type, {name: array[outputs] for name, array in self.arrays.items()})
        integers = part.levels().astype(np.float32) - np.float32(self.block_type.zero)
        with np.errstate(over="ignore"):  # hostile scales are too large
            weight: Float32Array = integers * part._numbers("scale")[..., None]
        if self.block_type.has_minima:
            weight += part._numbers("minimum")[..., None]
        return weight.reshape(len(weight), -1)

    def _numbers(self, name: str) -> Float32Array:
        """Scales or minima (J, blocks) in fp32."""
        if self.block_type.has_exponents:
            return np.ldexp(np.float32(1), self.arrays[f"{name}_exponents"].astype(np.int32) - 128)
        numbers: Float32Array = self.arrays[f"{name}_numbers"].astype(np.float32)
        codes = self.arrays.get(f"{name}_codes")
        if codes is None:
            return numbers
        return np.repeat(numbers, self.block_type.blocks_per_super_block, axis=1) * codes.astype(np.float32)


def unpack_blocks(block_type: BlockType, rows: UInt8Array) -> Blocks:
    """rows (J, bytes) of a tensor, as the file has them (ggml-common.h of llama.cpp) -> a matrix (J, K)."""
    sizes = block_type.fields
    units = rows.reshape(len(rows), -1, block_type.unit_bytes)
    parts = np.split(units, np.cumsum(list(sizes.values()))[:-1], axis=2)
    fields = dict(zip(sizes, parts, strict=True))
    others: dict[str, Array] = {}
    if block_type.has_exponents:
        others["scale_exponents"] = np.ascontiguousarray(fields["e"][..., 0])
    else:
        others["scale_numbers"] = _halves(fields["d"])
    if block_type.has_minima:
        minima = _halves(fields["m"])
        # Where minima are shared, the file subtracts them.
        others["minimum_numbers"] = -minima if block_type.blocks_per_super_block > 1 else minima
    if block_type.blocks_per_super_block > 1:
        others |= _integers(block_type, fields)
    arrays = _codes(block_type, fields) | others
    return Blocks(block_type, {name: arrays[name] for name in block_type.parts})


def _halves(field: UInt8Array) -> npt.NDArray[np.float16]:
    """(J, units, 2) -> (J, units)"""
    halves: npt.NDArray[np.float16] = np.ascontiguousarray(field).view("<f2")[..., 0].astype(np.float16)
    return halves


def _integers(block_type: BlockType, fields: _Fields) -> dict[str, Array]:
    """The integers (J, blocks) that multiply shared scales and minima."""
    num_rows = len(fields["qs"])
    if "scales_l" in fields:
        high = np.ascontiguousarray(fields["scales_h"]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
        low = _packed(fields["scales_l"], 1, 4, 2)[..., None] >> np.array([0, 4], np.uint8) & np.uint8(15)
        codes = low.reshape(num_rows, -1) | high.astype(np.uint8).reshape(num_rows, -1) << np.uint8(4)
        return {"scale_codes": codes.astype(np.int8) - np.int8(32)}
    field = fields["scales"]
    if block_type.has_signed_scales:
        return {"scale_codes": field.reshape(num_rows, -1).view(np.int8)}
    scales, minima = Q4_K.get_scale_min(field.reshape(-1, field.shape[2]))
    return {"scale_codes": scales.reshape(num_rows, -1), "minimum_codes": minima.reshape(num_rows, -1)}


def _codes(block_type: BlockType, fields: _Fields) -> dict[str, Array]:
    """qs, and qh where there are any, as `Blocks` have them."""
    num_rows, per_block = len(fields["qs"]), block_type.num_inputs
    if block_type.bits == 8:
        return {"qs": (fields["qs"] ^ np.uint8(128)).reshape(num_rows, -1, per_block)}  # from -128 on
    arrays: dict[str, Array] = {"qs": _packed(fields["qs"], block_type.qs_run, 4, per_block)}
    if bits := block_type.qh_bits:
        arrays["qh"] = _packed(fields["qh"], block_type.qh_run, bits, per_block)
    return arrays


def _packed(field: UInt8Array, run: int, bits: int, per_block: int) -> UInt8Array:
    """A field in runs of so many bytes, the lowest bits of all of a run's first, then the next ones; (J, units, bytes).

    -> (J, blocks, per_block * bits / 8), where codes are neighbours, the first in the lowest bits.
    """
    num_rows, shape = len(field), (len(field), -1, per_block * bits // 8)
    if run == 1:
        return np.ascontiguousarray(field).reshape(shape)
    num_shifts = 8 // bits  # of a byte; also how many bytes' codes become one byte
    words = np.ascontiguousarray(field).reshape(num_rows, -1, run).view("<u8")  # eight bytes at a time
    packed = np.empty((num_rows, words.shape[1], num_shifts, run // num_shifts), np.uint8)
    mask = np.uint64(int.from_bytes(bytes([2**bits - 1] * 8), "little"))
    for index in range(num_shifts):
        word = words >> np.uint64(index * bits) & mask
        distance = 8 - bits
        while distance < 4 * num_shifts:  # neighbours join, then pairs of them
            word |= word >> np.uint64(distance)
            distance *= 2
        packed[:, :, index] = word.view(np.uint8)[..., ::num_shifts]
    return packed.reshape(shape)
