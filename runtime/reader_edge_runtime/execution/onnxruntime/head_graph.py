"""The one graph of all heads, with a head's matrices put into it.

`head.onnx` holds the graph without them; `scripts/write_head_graph` writes it. So a head's file can say nothing of what
is computed, nor of how much.
"""

from importlib import resources

from reader_edge_runtime.arrays import Array
from reader_edge_runtime.drafting.sources.head_file import HeadFile

# The one matrix that a step multiplies by twice, and the name that it has the second time.
VOCABULARY_WEIGHT, VOCABULARY_AGAIN = "vocabulary.weight", "vocabulary_again.weight"

# Numbers of onnx.proto: fields of a model, a graph and a tensor, and types of a tensor.
_GRAPH = 7
_INITIALIZER = 5
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA = 1, 2, 8, 9
_DATA_TYPES = {"<f4": 1, "|i1": 3, "<f2": 10}

_VARINT, _BYTES = 0, 2  # kinds of fields


def head_model(head: HeadFile) -> bytes:
    """An ONNX model, as a file holds it."""
    skeleton = resources.files(__package__).joinpath("head.onnx").read_bytes()
    matrices = {**head.matrices, VOCABULARY_AGAIN: head.matrices[VOCABULARY_WEIGHT]}
    tensors = (_field(_INITIALIZER, _tensor(name, array)) for name, array in matrices.items())
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
