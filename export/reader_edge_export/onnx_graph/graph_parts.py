"""A graph cut into parts between its layers' attention, so that one part's weights can be in memory alone.

What is known of a graph is its KV tensors and states, which tell where a layer's attention or recurrence is. Everything
that crosses a cut is handed on, hidden states as well as angles and masks, so that no architecture needs to be known.
A shared KV cache does not cross a cut: each part gets the new rows and writes them into its own copy.
"""

from collections import Counter
from collections.abc import Container, Iterator, Set
from dataclasses import dataclass
from itertools import accumulate, pairwise

import onnx_ir as ir

from reader_edge_runtime.package.manifest import Manifest

_CUTTING = ("Slice", "Cast", "Transpose")  # operators that take a part of a KV cache, or its form


@dataclass(frozen=True, slots=True)
class GraphPart:
    """model: a part as a model of its own, with the functions and properties of the whole.

    live: names of what earlier parts computed that this one or later ones read.
    """

    model: ir.Model
    live: frozenset[str]


def cut_graph(model: ir.Model, manifest: Manifest, max_part_bytes: int) -> list[GraphPart]:
    """The parts of a package's graph, in turn: each has as many layers as so many bytes of weights allow, or one."""
    order = NodeOrder(model.graph, set(manifest.present_names()))
    starts = [0]
    num_live = order.num_live()
    cuts = [min(positions, key=num_live.__getitem__) for positions in gaps(order, manifest)]
    for cut, end in pairwise([*cuts, order.num_nodes]):
        if order.num_weight_bytes(starts[-1], end) > max_part_bytes:
            starts.append(cut)
    return [_part(model, order, start, end) for start, end in pairwise([*starts, order.num_nodes])]


def gaps(order: "NodeOrder", manifest: Manifest) -> list[range]:
    """Positions between one layer's attention or recurrence and the next, in turn."""
    spans = sorted([*map(order.span, _kept_names(manifest)), *_sharing_spans(order, manifest)])
    between = (range(last + 1, first + 1) for (_, last), (first, _) in pairwise(spans))
    return [positions for positions in between if positions]


def _sharing_spans(order: "NodeOrder", manifest: Manifest) -> Iterator[tuple[int, int]]:
    """Of layers that read another one's KV cache, where each is one operator."""
    shared = Counter(layer.shares for layer in manifest.layers if layer.shares is not None)
    for source, num_layers in shared.items():
        _, *others = order.readers(f"present_value.{source}")
        if len(others) == num_layers:
            yield from zip(others, others, strict=True)


def _kept_names(manifest: Manifest) -> list[set[str]]:
    """Of each layer that keeps anything of earlier tokens: its tensors among the graph's inputs and outputs."""
    by_layer: dict[int, set[str]] = {}
    for name in (*manifest.past_names(), *manifest.present_names()):
        by_layer.setdefault(int(name.rpartition(".")[2]), set()).add(name)
    for name in manifest.state_sizes():
        tensors = {f"{word}_{name}" for word in ("state", "pending", "present", "capsule")}
        by_layer.setdefault(int(name.rpartition(".")[2]), set()).update(tensors)
    return [by_layer[layer] for layer in sorted(by_layer)]


def _part(model: ir.Model, order: "NodeOrder", start: int, end: int) -> GraphPart:
    live = order.live(start)
    made = [value for value in order.graph_outputs if start <= order.made_at(value) < end]
    made += order.written_again(start, end)
    outputs = dict.fromkeys([*(value for value in order.live(end) if order.made_at(value) >= start), *made])
    graph = ir.convenience.extract(model.graph, [*live, *model.graph.inputs], list(outputs))
    for value in list(graph.inputs):
        if not value.uses():
            graph.inputs.remove(value)
    functions = [function.clone() for function in model.functions.values()]
    part = ir.Model(graph, ir_version=model.ir_version, functions=functions)
    part.metadata_props.update(model.metadata_props)
    return GraphPart(part, frozenset(str(value.name) for value in live))


class NodeOrder:
    """A graph's nodes by their positions, and what is live in front of each.

    Live is what was computed of the graph's inputs and is still read. What comes of weights alone is not: each part
    computes it again. Nor are KV caches with the rows of a pass, named in `present`, and what is cut out of them.
    """

    def __init__(self, graph: ir.Graph, present: Set[str]) -> None:
        self.graph_outputs = list(graph.outputs)
        self._nodes = list(graph)
        self.num_nodes = len(self._nodes)
        self._positions = {node: position for position, node in enumerate(self._nodes)}
        self._last_reads: dict[ir.Value, int] = {}  # of what was computed
        inputs = set(graph.inputs)
        for node in self._nodes:
            if any(value in inputs or value in self._last_reads for value in node.inputs):
                for value in node.outputs:
                    self._last_reads[value] = max((self._positions[reader] for reader, _ in value.uses()), default=-1)
        self._again: dict[ir.Value, set[int]] = {}  # with the positions of what reads it, or what is cut out of it
        self._find_again(present)

    def num_live(self, among: Container[ir.Value] | None = None) -> list[int]:
        """How many values are live in front of each position. among: those that count; None for all."""
        steps = [0] * (self.num_nodes + 1)
        for value, last in self._last_reads.items():
            if last >= 0 and value not in self._again and (among is None or value in among):
                steps[self.made_at(value) + 1] += 1
                steps[last + 1] -= 1
        return list(accumulate(steps))

    def _find_again(self, present: Set[str]) -> None:
        for node in self._nodes:
            is_part = node.op_type in _CUTTING and any(value in self._again for value in node.inputs)
            for value in node.outputs:
                if is_part or value.name in present:
                    self._again[value] = {self._positions[reader] for reader, _ in value.uses()}
        for value in reversed(self._again):
            maker = value.producer()
            assert maker is not None
            last = max([self._last_reads[value], *self._again[value]])
            for read in maker.inputs:
                if read in self._again:
                    self._again[read] = self._again[read] - {self.made_at(value)} | self._again[value]
                elif read in self._last_reads:
                    self._last_reads[read] = max(self._last_reads[read], last)

    def readers(self, name: str) -> list[int]:
        """Positions of what reads a KV cache with the rows of a pass, or what is cut out of it."""
        return next(sorted(positions) for value, positions in self._again.items() if value.name == name)

    def written_again(self, start: int, end: int) -> list[ir.Value]:
        """KV caches that nodes at [start, end) read and earlier ones have written first."""
        outputs = (value for value in self._again if value in self.graph_outputs and self.made_at(value) < start)
        return [value for value in outputs if any(start <= reader < end for reader in self._again[value])]

    def made_at(self, value: ir.Value) -> int:
        """The position of the node that computes a value."""
        maker = value.producer()
        assert maker is not None
        return self._positions[maker]

    def live(self, position: int) -> list[ir.Value]:
        """What is computed in front of a position and read behind."""
        return [
            value
            for value, last in self._last_reads.items()
            if value not in self._again and self.made_at(value) < position <= last
        ]

    def span(self, names: set[str]) -> tuple[int, int]:
        """The first and the last position of the nodes that read or make values of these names.

        Of KV caches with the rows of a pass, the first reader counts, which is their own layer's.
        """
        touching = [
            position
            for position, node in enumerate(self._nodes)
            if any(
                value is not None and value.name in names and value not in self._again
                for value in (*node.inputs, *node.outputs)
            )
        ]
        first_readers = [min(self._again[value]) for value in self._again if value.name in names and self._again[value]]
        return min(touching), max([*touching, *first_readers])

    def num_weight_bytes(self, start: int, end: int) -> int:
        """Bytes of the initializers that nodes at [start, end) read."""
        read = {value for node in self._nodes[start:end] for value in node.inputs if value is not None}
        return sum(value.const_value.nbytes for value in read if value.const_value is not None)
