"""What an ONNX file refers to, read from its bytes without loading it.

ONNX Runtime reads whatever external data a graph names, runs any loop that it holds and unfolds functions without a
limit. The walk over the Protocol Buffers wire format here follows only the messages that matter (onnx.proto: model,
graph, function, node, attribute, tensor), copies no tensor, and stops at whatever is not well formed.

Loops are bounded where a tensor's size says how often they run: a tensor has to be in memory first.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from reader_edge_runtime.errors import PackageError

Operator = tuple[str, str]  # domain ("" for ONNX's own) and type

_MAX_FIELDS = 1 << 22  # a graph of 100 layers has 100,000
_MAX_FUNCTION_DEPTH = 8
_MAX_LOOP_DEPTH = 2

# By message of onnx.proto, the numbers of the fields that matter and what they hold. The model's field 20 is training
# information, which holds graphs of its own.
_PARTS = {
    "model": {7: "graph", 20: "subgraph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse_tensor"},
    "function": {1: "text", 7: "node", 10: "text", 11: "default"},
    "node": {1: "text", 2: "text", 4: "text", 5: "attribute", 7: "text"},
    "attribute": {5: "tensor", 6: "body", 10: "tensor", 11: "subgraph", 22: "sparse_tensor", 23: "sparse_tensor"},
    "default": {5: "tensor", 6: "subgraph", 10: "tensor", 11: "subgraph", 22: "sparse_tensor", 23: "sparse_tensor"},
    "body": {1: "node", 5: "tensor", 15: "sparse_tensor"},
    "sparse_tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "entry": {1: "text", 2: "text"},
}

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(slots=True)
class GraphFile:
    """The operators and files that an ONNX file names.

    external_files: locations of external data, as written. nodes: the operator of each node of the graph, those in its
    loops included. functions: the operators of each model-local function's nodes, likewise. looped: operators in loops.
    looping: functions that hold loops. has_free_subgraphs: some node holds a graph of its own that may run without end,
    or one that is not looked at: anything but a Loop, two deep at most, that runs as often as a Size beside it says.
    """

    external_files: set[str] = field(default_factory=set)
    nodes: list[Operator] = field(default_factory=list)
    functions: dict[Operator, list[Operator]] = field(default_factory=dict)
    looped: set[Operator] = field(default_factory=set)
    looping: set[Operator] = field(default_factory=set)
    has_free_subgraphs: bool = False

    @classmethod
    def read(cls, path: Path) -> "GraphFile":
        """Read a file. Raises PackageError where it is no ONNX model, or a part of one is cut off."""
        graph = cls()
        with path.open("rb") as file:
            try:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    if "graph" not in _Walk(content, graph).message("model", (0, len(content)), _Scope(graph.nodes)):
                        raise ValueError("no graph")
            except (ValueError, IndexError):
                raise PackageError(f"'{path}' is not an ONNX model: export or copy the package again.") from None
        return graph

    @property
    def operators(self) -> set[Operator]:
        """Operators of all nodes, those of functions included."""
        return {*self.nodes, *(operator for nodes in self.functions.values() for operator in nodes)}

    def has_unbounded_work(self) -> bool:
        """Whether the graph may run without end: a free subgraph, or a loop in a function that a loop calls."""
        called = set(self.looped)
        for _ in range(_MAX_FUNCTION_DEPTH):
            called.update(*(self.functions.get(operator, ()) for operator in called))
        return self.has_free_subgraphs or not called.isdisjoint(self.looping)

    def num_unfolded_nodes(self) -> float:
        """Nodes of the graph once every function is unfolded; infinite where functions call each other too deeply."""
        sizes = dict.fromkeys(self.functions, 0)
        for _ in range(_MAX_FUNCTION_DEPTH):
            before, sizes = sizes, {name: _num_nodes(nodes, sizes) for name, nodes in self.functions.items()}
            if sizes == before:
                return _num_nodes(self.nodes, sizes)
        return float("inf")


def _last(texts: dict[int, list[str]], number: int) -> str:
    """The last of repeated texts, as Protocol Buffers has it."""
    return texts.get(number, [""])[-1]


def _num_nodes(nodes: list[Operator], function_sizes: dict[Operator, int]) -> int:
    return sum(1 + function_sizes.get(operator, 0) for operator in nodes)


@dataclass(slots=True)
class _Scope:
    """What a graph, a function or a loop's body holds. nodes: of the function that it is in.

    num_bodies: of the node that is read. trips: what says how often its loops run. sizes: what its Size nodes give.
    """

    nodes: list[Operator]
    depth: int = 0
    num_bodies: int = 0
    trips: set[str] = field(default_factory=set)
    sizes: set[str] = field(default_factory=set)


class _Walk:
    """One walk over a file's bytes; a span is the (begin, end) of a message's or string's bytes in them.

    Raises ValueError or IndexError for what is not well formed.
    """

    def __init__(self, content: mmap.mmap, graph: GraphFile) -> None:
        self._content = content
        self._graph = graph
        self._num_fields = 0

    def message(self, kind: str, span: tuple[int, int], scope: _Scope) -> set[str]:
        """Note what a message holds in the scope that it belongs to. Returns its parts' kinds."""
        texts: dict[int, list[str]] = {}
        parts = set()
        for number, part_span in self._fields(span):
            part = _PARTS[kind].get(number, "other")
            parts.add(part)
            if part == "text":
                text = self._content[slice(*part_span)].decode(errors="backslashreplace")
                texts.setdefault(number, []).append(text)
            elif part == "subgraph":
                self._graph.has_free_subgraphs = True
            elif part != "other":
                self._part(part, part_span, scope)
        if kind == "node":
            self._note_node(texts, scope)
        elif kind == "function":
            self._note_function(texts, scope)
        elif kind == "entry" and _last(texts, 1) == "location":
            self._graph.external_files.add(_last(texts, 2))
        return parts

    def _part(self, kind: str, span: tuple[int, int], scope: _Scope) -> None:
        if kind == "body":
            scope.num_bodies += 1
            scope = _Scope(scope.nodes, scope.depth + 1)
        elif kind in ("graph", "function"):
            scope = _Scope(scope.nodes if kind == "graph" else [])
        if scope.depth > _MAX_LOOP_DEPTH:
            self._graph.has_free_subgraphs = True
            return
        self.message(kind, span, scope)
        if kind in ("body", "graph", "function") and not scope.trips <= scope.sizes:
            self._graph.has_free_subgraphs = True

    def _note_node(self, texts: dict[int, list[str]], scope: _Scope) -> None:
        domain = _last(texts, 7)
        operator = ("" if domain == "ai.onnx" else domain, _last(texts, 4))
        scope.nodes.append(operator)
        if scope.depth:
            self._graph.looped.add(operator)
        if operator == ("", "Size"):
            scope.sizes.update(texts.get(2, []))
        if operator == ("", "Loop") and scope.num_bodies == 1:
            scope.trips.add(texts.get(1, [""])[0])
        elif scope.num_bodies:
            self._graph.has_free_subgraphs = True
        scope.num_bodies = 0

    def _note_function(self, texts: dict[int, list[str]], scope: _Scope) -> None:
        name = (_last(texts, 10), _last(texts, 1))
        self._graph.functions.setdefault(name, []).extend(scope.nodes)
        if scope.trips:
            self._graph.looping.add(name)

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
