"""The one graph of all heads, with a head's matrices put into it.

`head.onnx` holds the graph without them; `scripts/write_head_graph` writes it. So a head's file can say nothing of what
is computed, nor of how much.
"""

from importlib import resources

import numpy as np

from reader_edge_runtime.arrays import Array
from reader_edge_runtime.drafting.sources.head_file import HeadFile
from reader_edge_runtime.drafting.sources.head_sizes import HeadSizes

# The one matrix that a step multiplies by twice, and the name that it has the second time, in the definition alone.
VOCABULARY_WEIGHT, VOCABULARY_AGAIN = "vocabulary.weight", "vocabulary_again.weight"
EMBEDDING = "embedding"
MATRICES = (*HeadSizes(1, 1).matrices(), VOCABULARY_AGAIN)  # in the order in which the graph reads them

# Numbers of onnx.proto: fields of a model, a graph and a tensor, and types of a tensor.
_GRAPH = 7
_INITIALIZER = 5
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA = 1, 2, 8, 9
_DATA_TYPES = {"<f4": 1, "|i1": 3}

_VARINT, _BYTES = 0, 2  # kinds of fields


def head_model(head: HeadFile) -> bytes:
    """An ONNX model, as a file holds it."""
    skeleton = resources.files(__package__).joinpath("head.onnx").read_bytes()
    matrices = {
        **head.matrices,
        EMBEDDING: head.matrices[EMBEDDING].astype(np.float32),
        VOCABULARY_AGAIN: head.matrices[VOCABULARY_WEIGHT],
    }
    tensors = (_field(_INITIALIZER, _tensor(name, matrices[name])) for name in MATRICES)
    # Of a field that comes twice, Protocol Buffers merge both messages.
    return skeleton + _field(_GRAPH, b"".join(tensors))


def _tensor(name: str, array: Array) -> bytes:
    numbers = [(_DIMS, length) for length in array.shape] + [(_DATA_TYPE, _DATA_TYPES[array.dtype.str])]
    begun = b"".join(_varint(number << 3 | _VARINT) + _varint(value) for number, value in numbers)
    return begun + _field(_NAME, name.encode()) + _field(_RAW_DATA, array.tobytes())


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
