"""What an ONNX file refers to, read from its bytes without loading it.

ONNX Runtime reads whatever external data a graph names, runs any loop that it holds and unfolds functions without a
limit. The walk over the Protocol Buffers wire format here follows only the messages that matter (onnx.proto: model,
graph, function, node, attribute, tensor), copies no tensor, and stops at whatever is not well formed.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from reader_edge_runtime.errors import PackageError

Operator = tuple[str, str]  # domain ("" for ONNX's own) and type

_MAX_FIELDS = 1 << 22  # a graph of 100 layers has 100,000
_MAX_FUNCTION_DEPTH = 8

# By message of onnx.proto, the numbers of the fields that matter and what they hold. The model's field 20 is training
# information, which holds graphs of its own.
_PARTS = {
    "model": {7: "graph", 20: "subgraph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse_tensor"},
    "function": {1: "text", 7: "node", 10: "text", 11: "attribute"},
    "node": {4: "text", 5: "attribute", 7: "text"},
    "attribute": {5: "tensor", 6: "subgraph", 10: "tensor", 11: "subgraph", 22: "sparse_tensor", 23: "sparse_tensor"},
    "sparse_tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "entry": {1: "text", 2: "text"},
}

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(slots=True)
class GraphFile:
    """The operators and files that an ONNX file names.

    external_files: locations of external data, as written. nodes: the operator of each node of the graph.
    functions: the operators of each model-local function's nodes. has_subgraphs: some node holds a graph of its own
    (Loop, If, Scan and their kin), whose nodes and files are not listed here.
    """

    external_files: set[str] = field(default_factory=set)
    nodes: list[Operator] = field(default_factory=list)
    functions: dict[Operator, list[Operator]] = field(default_factory=dict)
    has_subgraphs: bool = False

    @classmethod
    def read(cls, path: Path) -> "GraphFile":
        """Read a file. Raises PackageError where it is no ONNX model, or a part of one is cut off."""
        graph = cls()
        with path.open("rb") as file:
            try:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    if "graph" not in _Walk(content, graph).message("model", (0, len(content)), graph.nodes):
                        raise ValueError("no graph")
            except (ValueError, IndexError):
                raise PackageError(f"'{path}' is not an ONNX model: export or copy the package again.") from None
        return graph

    @property
    def operators(self) -> set[Operator]:
        """Operators of all nodes, those of functions included."""
        return {*self.nodes, *(operator for nodes in self.functions.values() for operator in nodes)}

    def num_unfolded_nodes(self) -> float:
        """Nodes of the graph once every function is unfolded; infinite where functions call each other too deeply."""
        sizes = dict.fromkeys(self.functions, 0)
        for _ in range(_MAX_FUNCTION_DEPTH):
            before, sizes = sizes, {name: _num_nodes(nodes, sizes) for name, nodes in self.functions.items()}
            if sizes == before:
                return _num_nodes(self.nodes, sizes)
        return float("inf")


def _num_nodes(nodes: list[Operator], function_sizes: dict[Operator, int]) -> int:
    return sum(1 + function_sizes.get(operator, 0) for operator in nodes)


class _Walk:
    """One walk over a file's bytes; a span is the (begin, end) of a message's or string's bytes in them.

    Raises ValueError or IndexError for what is not well formed.
    """

    def __init__(self, content: mmap.mmap, graph: GraphFile) -> None:
        self._content = content
        self._graph = graph
        self._num_fields = 0

    def message(self, kind: str, span: tuple[int, int], nodes: list[Operator]) -> set[str]:
        """Note what a message holds; nodes: of the graph or function that it belongs to. Returns its parts' kinds."""
        texts: dict[int, str] = {}
        parts = set()
        if kind == "function":
            nodes = []
        for number, part_span in self._fields(span):
            part = _PARTS[kind].get(number, "other")
            parts.add(part)
            if part == "subgraph":
                self._graph.has_subgraphs = True
            elif part == "text":
                texts[number] = self._content[slice(*part_span)].decode(errors="backslashreplace")
            elif part != "other":
                self.message(part, part_span, nodes)
        if kind == "node":
            domain = texts.get(7, "")
            nodes.append(("" if domain == "ai.onnx" else domain, texts.get(4, "")))
        elif kind == "function":
            self._graph.functions.setdefault((texts.get(10, ""), texts.get(1, "")), []).extend(nodes)
        elif kind == "entry" and texts.get(1) == "location":
            self._graph.external_files.add(texts.get(2, ""))
        return parts

    def _fields(self, span: tuple[int, int]) -> Iterator[tuple[int, tuple[int, int]]]:
        """Number and span of each field of a message that has a length; numbers are passed over."""
        position, end = span
        while position < end:
            self._num_fields += 1
            tag, position = self._varint(position)
            kind = tag & 7
            if tag >> 32 or self._num_fields > _MAX_FIELDS:
                raise ValueError("too large a number, or too many fields")
            if kind == _VARINT:
                _, position = self._varint(position)
            elif kind == _BYTES:
                length, begin = self._varint(position)
                position = begin + length
                if position <= end:
                    yield tag >> 3, (begin, position)
            elif kind in (_FIXED64, _FIXED32):
                position += 8 if kind == _FIXED64 else 4
            else:
                raise ValueError("not a wire type of ONNX")
        if position > end:
            raise ValueError("a field reaches beyond its message")

    def _varint(self, position: int) -> tuple[int, int]:
        """A number of at most ten bytes, and the position after it."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self._content[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
        raise ValueError("a number has no end")
