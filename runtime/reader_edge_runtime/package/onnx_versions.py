"""What versions an ONNX file is written in, read from its first level without loading it.

ONNX Runtime refuses files that are newer than itself, and neither tells what it takes nor reads what it refuses.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from reader_edge_runtime.errors import PackageError

_IR_VERSION, _OPSET, _DOMAIN, _VERSION = 1, 8, 1, 2  # numbers of onnx.proto's fields, of a model and of an operator set
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_FIELDS = 1 << 16
_OWN_DOMAINS, _MAX_DOMAIN = (b"", b"ai.onnx"), 16


class OnnxVersions(NamedTuple):
    """ir: of the format. opset: of ONNX's own operators; 0 where the file does not say."""

    ir: int
    opset: int


def onnx_versions(path: Path) -> OnnxVersions:
    """Raises PackageError for a file that is no ONNX model."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            fields = list(_fields(content, 0, len(content)))
            ir = next(value for number, value, _ in fields if number == _IR_VERSION)
            opsets = [_own_version(content, begin, end) for number, begin, end in fields if number == _OPSET]
    except (ValueError, IndexError, StopIteration):
        raise PackageError(f"'{path}' is not an ONNX model: export or copy the package again.") from None
    return OnnxVersions(ir, max(opsets, default=0))


def _own_version(content: mmap.mmap, begin: int, end: int) -> int:
    """The version of a set of operators; 0 of one that is not ONNX's own."""
    version = 0
    for number, value, upto in _fields(content, begin, end):
        if number == _DOMAIN and content[value : min(upto, value + _MAX_DOMAIN)] not in _OWN_DOMAINS:
            return 0
        if number == _VERSION:
            version = value
    return version


def _fields(content: mmap.mmap, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Of each field of a message its number and value; or, of one with a length, where its bytes begin and end."""
    for _ in range(_MAX_FIELDS):
        if position >= end:
            break
        tag, position = _varint(content, position)
        kind = tag & 7
        if kind == _VARINT:
            value, position = _varint(content, position)
            yield tag >> 3, value, 0
        elif kind == _BYTES:
            length, begin = _varint(content, position)
            position = begin + length
            yield tag >> 3, begin, position
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("not a wire type of ONNX")
    if position != end:
        raise ValueError("a field reaches beyond its message, or there are too many")


def _varint(content: mmap.mmap, position: int) -> tuple[int, int]:
    """A number of at most ten bytes, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number has no end")
