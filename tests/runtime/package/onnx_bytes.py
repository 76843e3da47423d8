"""ONNX messages as bytes, by their field numbers in onnx.proto: hostile ones, that no library would write."""

from collections.abc import Sequence


def varint(number: int) -> bytes:
    """A number of the wire format."""
    parts = []
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def message(field_number: int, content: bytes | str) -> bytes:
    """A field that has a length: a message, text or bytes."""
    content = content.encode() if isinstance(content, str) else content
    return varint(field_number << 3 | 2) + varint(len(content)) + content


def model(*nodes: bytes, tensors: Sequence[bytes] = (), functions: Sequence[bytes] = ()) -> bytes:
    """A ModelProto: NodeProtos and initializers of its graph, and FunctionProtos."""
    fields = [*(message(1, node) for node in nodes), *(message(5, tensor) for tensor in tensors)]
    return message(7, b"".join(fields)) + b"".join(message(25, function) for function in functions)


def external_tensor(location: str) -> bytes:
    """A TensorProto that lies in a file."""
    offset, place = (message(1, key) + message(2, value) for key, value in (("offset", "0"), ("location", location)))
    return message(13, offset) + message(13, place)


def node(
    op_type: str, domain: str = "", attribute: bytes = b"", inputs: Sequence[str] = (), outputs: Sequence[str] = ()
) -> bytes:
    """A NodeProto with an AttributeProto."""
    names = b"".join(message(number, name) for number, group in ((1, inputs), (2, outputs)) for name in group)
    return names + message(4, op_type) + message(5, attribute) + message(7, domain)


def function(name: str, *nodes: bytes) -> bytes:
    """A FunctionProto of the domain "own"."""
    return message(1, name) + b"".join(message(7, node) for node in nodes) + message(10, "own")


GRAPH = message(7, message(2, b"a graph of no nodes" * 20))  # a ModelProto
