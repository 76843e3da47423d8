"""The bytes of a tensor in blocks, taken apart: `Blocks` hold the same codes and scales in an order of their own.

Layouts: ggml-common.h and ggml-quants.c of llama.cpp.
"""

import numpy as np
import numpy.typing as npt
from gguf.quants import Q4_K

from reader_edge_export.blocks.block_type import BlockType
from reader_edge_export.blocks.blocks import Blocks
from reader_edge_runtime.arrays import Array, UInt8Array

_Fields = dict[str, UInt8Array]  # each (J, units, bytes)


def unpack_blocks(block_type: BlockType, rows: UInt8Array) -> Blocks:
    """rows (J, bytes) of a tensor, as the file has them -> a matrix (J, K)."""
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
        others |= _integers(block_type, fields["scales"])
    arrays = _codes(block_type, fields) | others
    return Blocks(block_type, {name: arrays[name] for name in block_type.parts})


def _halves(field: UInt8Array) -> npt.NDArray[np.float16]:
    """(J, units, 2) -> (J, units)"""
    halves: npt.NDArray[np.float16] = np.ascontiguousarray(field).view("<f2")[..., 0].astype(np.float16)
    return halves


def _integers(block_type: BlockType, field: UInt8Array) -> dict[str, Array]:
    """The integers (J, blocks) that multiply shared scales and minima."""
    num_rows = len(field)
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
