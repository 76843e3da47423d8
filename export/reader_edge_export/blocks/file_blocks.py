"""The bytes of a tensor in blocks, taken apart: `Blocks` hold the same codes and scales in an order of their own.

Layouts: ggml-common.h and ggml-quants.c of llama.cpp.
"""

import numpy as np
import numpy.typing as npt
from gguf.quants import Q4_K

from reader_edge_export.blocks.block_type import BlockType
from reader_edge_export.blocks.blocks import Array, Blocks

UInt8Array = npt.NDArray[np.uint8]
_Fields = dict[str, UInt8Array]  # each (J, units, bytes)


def blocks_of(block_type: BlockType, rows: UInt8Array) -> Blocks:
    """rows (J, bytes) of a tensor, as the file has them -> a matrix (J, K)."""
    sizes = block_type.fields
    units = rows.reshape(len(rows), -1, block_type.unit_bytes)
    parts = np.split(units, np.cumsum(list(sizes.values()))[:-1], axis=2)
    fields = dict(zip(sizes, parts, strict=True))
    others: dict[str, Array] = {"scale_numbers": _halves(fields["d"])}
    if block_type.has_minima:
        minima = _halves(fields["m"])
        # Where minima are shared, the file subtracts them.
        others["minimum_numbers"] = -minima if block_type.num_sharing > 1 else minima
    if block_type.num_sharing > 1:
        others |= _integers(block_type, fields["scales"])
    codes = _codes(block_type, fields).reshape(len(rows), -1, block_type.num_inputs)
    return Blocks.of_codes(block_type, codes, others)


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


def _codes(block_type: BlockType, fields: _Fields) -> UInt8Array:
    """(J, units, inputs)"""
    if block_type.bits == 8:
        return fields["qs"] ^ np.uint8(128)  # from -128 on
    codes = _runs(fields["qs"], block_type.low_run, 4)
    if block_type.high_bits:
        codes |= _runs(fields["qh"], block_type.high_run, block_type.high_bits) << np.uint8(4)
    return codes


def _runs(field: UInt8Array, run: int, bits: int) -> UInt8Array:
    """A field in runs of so many bytes: the lowest bits of all of a run's, then the next ones.

    (J, units, bytes) -> (J, units, bytes 8 / bits)
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    split = field.reshape(*field.shape[:2], -1, 1, run) >> shifts & np.uint8(2**bits - 1)
    return split.reshape(*field.shape[:2], -1)
