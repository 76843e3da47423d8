"""The bytes of a tensor in blocks, taken apart: `Blocks` hold the same codes and scales in an order of their own.

Layouts: ggml-common.h and ggml-quants.c of llama.cpp.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from gguf.quants import Q4_K

from reader_edge_export.block_types import Array, Blocks, BlockType

UInt8Array = npt.NDArray[np.uint8]

_FIELDS: dict[str, dict[str, int]] = {  # of a block, or of eight or sixteen that share numbers: bytes of each
    "Q4_0": {"d": 2, "qs": 16},
    "Q4_1": {"d": 2, "m": 2, "qs": 16},
    "Q5_0": {"d": 2, "qh": 4, "qs": 16},
    "Q5_1": {"d": 2, "m": 2, "qh": 4, "qs": 16},
    "Q8_0": {"d": 2, "qs": 32},
    "Q4_K": {"d": 2, "m": 2, "scales": 12, "qs": 128},
    "Q5_K": {"d": 2, "m": 2, "scales": 12, "qh": 32, "qs": 128},
    "Q6_K": {"qs": 128, "qh": 64, "scales": 16, "d": 2},
}
_Fields = dict[str, UInt8Array]  # each (J, units, bytes)


def blocks_of(block_type: BlockType, rows: UInt8Array) -> Blocks:
    """rows (J, bytes) of a tensor, as the file has them -> a matrix (J, K)."""
    sizes = _FIELDS[block_type.name]
    units = rows.reshape(len(rows), -1, sum(sizes.values()))
    parts = np.split(units, np.cumsum(list(sizes.values()))[:-1], axis=2)
    fields = dict(zip(sizes, parts, strict=True))
    others: dict[str, Array] = {"scale_numbers": _halves(fields["d"])}
    if block_type.name == "Q6_K":
        others["scale_codes"] = fields["scales"].reshape(len(rows), -1).view(np.int8)
    elif "scales" in fields:
        scales, minima = Q4_K.get_scale_min(fields["scales"].reshape(-1, 12))
        # What a weight loses in the file is added here.
        others |= {"scale_codes": scales.reshape(len(rows), -1), "minimum_numbers": -_halves(fields["m"])}
        others["minimum_codes"] = minima.reshape(len(rows), -1)
    elif "m" in fields:
        others["minimum_numbers"] = _halves(fields["m"])
    codes = _CODES[block_type.name](fields).reshape(len(rows), -1, block_type.num_inputs)
    return Blocks.of_codes(block_type, codes, others)


def _halves(field: UInt8Array) -> npt.NDArray[np.float16]:
    """(J, units, 2) -> (J, units)"""
    halves: npt.NDArray[np.float16] = np.ascontiguousarray(field).view("<f2")[..., 0].astype(np.float16)
    return halves


def _runs(field: UInt8Array, run: int, bits: int) -> UInt8Array:
    """A field in runs of so many bytes: the lowest bits of all of a run's, then the next ones.

    (J, units, bytes) -> (J, units, bytes 8 / bits)
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    split = field.reshape(*field.shape[:2], -1, 1, run) >> shifts & np.uint8(2**bits - 1)
    return split.reshape(*field.shape[:2], -1)


def _short(fields: _Fields) -> UInt8Array:
    codes = _runs(fields["qs"], 16, 4)
    if "qh" in fields:
        codes |= np.unpackbits(fields["qh"], axis=2, bitorder="little") << np.uint8(4)
    return codes


def _q8_0(fields: _Fields) -> UInt8Array:
    return fields["qs"] ^ np.uint8(128)  # from -128 on


def _long(fields: _Fields) -> UInt8Array:
    codes = _runs(fields["qs"], 32, 4)
    if "qh" in fields:
        codes |= _runs(fields["qh"], 32, 1) << np.uint8(4)
    return codes


def _q6_k(fields: _Fields) -> UInt8Array:
    return _runs(fields["qs"], 64, 4) | _runs(fields["qh"], 32, 2) << np.uint8(4)


_CODES: dict[str, Callable[[_Fields], UInt8Array]] = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1"), _short),
    "Q8_0": _q8_0,
    **dict.fromkeys(("Q4_K", "Q5_K"), _long),
    "Q6_K": _q6_k,
}
