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
                    _Walk(content, graph).model()
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

    Numbers are the field numbers of onnx.proto. Raises ValueError or IndexError for what is not well formed.
    """

    def __init__(self, content: mmap.mmap, graph: GraphFile) -> None:
        self._content = content
        self._graph = graph
        self._num_fields = 0

    def model(self) -> None:
        has_graph = False
        for number, span in self._fields((0, len(self._content))):
            if number == 7:
                has_graph = True
                self._body(span)
            elif number == 20:  # training information holds graphs of its own
                self._graph.has_subgraphs = True
            elif number == 25:
                self._function(span)
        if not has_graph:
            raise ValueError("no graph")

    def _body(self, span: tuple[int, int]) -> None:
        for number, part in self._fields(span):
            if number == 1:
                self._graph.nodes.append(self._node(part))
            elif number == 5:
                self._tensor(part)
            elif number == 15:
                self._sparse_tensor(part)

    def _function(self, span: tuple[int, int]) -> None:
        domain = name = ""
        nodes = []
        for number, part in self._fields(span):
            if number == 1:
                name = self._text(part)
            elif number == 7:
                nodes.append(self._node(part))
            elif number == 10:
                domain = self._text(part)
            elif number == 11:
                self._attribute(part)
        self._graph.functions.setdefault((domain, name), []).extend(nodes)

    def _node(self, span: tuple[int, int]) -> Operator:
        domain = op_type = ""
        for number, part in self._fields(span):
            if number == 4:
                op_type = self._text(part)
            elif number == 5:
                self._attribute(part)
            elif number == 7:
                domain = self._text(part)
        return ("" if domain == "ai.onnx" else domain), op_type

    def _attribute(self, span: tuple[int, int]) -> None:
        for number, part in self._fields(span):
            if number in (5, 10):
                self._tensor(part)
            elif number in (6, 11):
                self._graph.has_subgraphs = True
            elif number in (22, 23):
                self._sparse_tensor(part)

    def _sparse_tensor(self, span: tuple[int, int]) -> None:
        for number, part in self._fields(span):
            if number in (1, 2):
                self._tensor(part)

    def _tensor(self, span: tuple[int, int]) -> None:
        for number, part in self._fields(span):
            if number == 13:
                entry = {key: self._text(text) for key, text in self._fields(part) if key in (1, 2)}
                if entry.get(1) == "location":
                    self._graph.external_files.add(entry.get(2, ""))

    def _text(self, span: tuple[int, int]) -> str:
        return self._content[slice(*span)].decode(errors="backslashreplace")

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
