"""The graphs of stages: cut where the residual stream is all that crosses.

What hangs on neither tokens nor the KV cache, as masks and angles, is computed again in every stage that reads it.
Bits stay what they are where ONNX Runtime joins the same operators: it joins a sum with the LayerNormalization behind
it, unless the graph reports that sum. So states of layers stay outputs, which nobody asks for, and a cut comes between
the two only where the whole graph reports the sum.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_parts import NodeOrder, gaps
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.execution.onnxruntime.host.host_stage import HostStage
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.package_parts import HANDED_IN, HANDED_OUT

_STATE = "layer_state."
_ALIKE = 0.05  # as a share of a layer's bytes
_CACHE_BYTES = 128 << 20  # read between two passes, as a model's other layers are: a layer alone stays in caches

WriteStage = Callable[[Path, range, int, int], object]  # gets a new folder, layers, the stage's number and how many


class StageGraphs:
    """layer_bytes: of the weights that each layer reads; the embeddings count for the first, the head for the last.

    ends: layers that a stage may have behind its last one. width: numbers of the residual stream.
    """

    def __init__(self, model: ir.Model, manifest: Manifest) -> None:
        """Raises ExportError where more than one value crosses between two layers."""
        self._model = model
        self._manifest = manifest
        _take_sizes_of_positions(model.graph)
        order = NodeOrder(model.graph, set(manifest.present_names()))
        tokens = _of_tokens(model.graph)
        num_live = order.num_live(tokens)  # others are computed again, and die at their own places
        positions = [
            min(reversed(gap), key=num_live.__getitem__) for gap in gaps(order, manifest)
        ]  # behind whole layers
        bounds = [0, *positions, order.num_nodes]
        self.layer_bytes = [order.num_weight_bytes(*pair) for pair in pairwise(bounds)]
        if len(self.layer_bytes) != manifest.num_layers:
            raise ExportError(f"The graph has {len(self.layer_bytes)} layers that can be separated: it is not split.")
        self._crossing = [
            _single([value for value in order.live(position) if value in tokens], layer)
            for layer, position in enumerate(positions, 1)
        ]
        self.ends = [
            layer
            for layer, value in enumerate(self._crossing, 1)
            if value in model.graph.outputs or all(node.op_type != "LayerNormalization" for node, _ in value.uses())
        ]
        self.width = _width(self._crossing, manifest)

    def stage(self, layers: range) -> ir.Model:
        """The model of some layers, numbered from 0."""
        graph, manifest = self._model.graph, self._manifest
        is_first, is_last = layers.start == 0, layers.stop == manifest.num_layers
        past = [name for name in manifest.past_names() if int(name.rpartition(".")[2]) in layers]
        present = [name.replace("past_", "present_", 1) for name in past]
        entries = {str(value.name): value for value in graph.inputs}
        ends = {str(value.name): value for value in graph.outputs}
        others = [value for name, value in entries.items() if not name.startswith("past_") and name != "input_ids"]
        first = entries["input_ids"] if is_first else self._crossing[layers.start - 1]
        answers = [value for name, value in ends.items() if not name.startswith(("present_", _STATE))]
        results = answers if is_last else [self._crossing[layers.stop - 1]]
        results += [value for name, value in ends.items() if self._is_state_of(name, layers) and value not in results]
        cut = ir.convenience.extract(
            graph, [first, *others, *(entries[name] for name in past)], [*results, *(ends[name] for name in present)]
        )
        for value in list(cut.inputs):
            if not value.uses():
                cut.inputs.remove(value)
        for name in filter(cut.initializers.__contains__, list(graph.initializers)):
            cut.initializers[name] = cut.initializers.pop(name)  # in the graph's order: the library has none
        self._name(cut, layers, None if is_first else cut.inputs[0], None if is_last else cut.outputs[0])
        functions = [function.clone() for function in self._model.functions.values()]
        stage = ir.Model(cut, ir_version=self._model.ir_version, functions=functions)
        stage.metadata_props.update(self._model.metadata_props)
        return stage

    def _is_state_of(self, name: str, layers: range) -> bool:
        """Whether an output is a state that these layers make; number i enters layer i."""
        if not name.startswith(_STATE):
            return False
        number, num_layers = int(name.removeprefix(_STATE)), self._manifest.num_layers
        first = layers.start + 1 if layers.start else 0
        return first <= number <= (num_layers + 1 if layers.stop == num_layers else layers.stop)

    def _name(self, graph: ir.Graph, layers: range, entry: ir.Value | None, result: ir.Value | None) -> None:
        for value in (*graph.inputs, *graph.outputs):
            stem, _, number = str(value.name).rpartition(".")
            if stem.startswith(("past_", "present_")):
                value.name = f"{stem}.{int(number) - layers.start}"
        for name, handed in ((HANDED_IN, entry), (HANDED_OUT, result)):
            if handed is not None:
                handed.name, handed.dtype, handed.shape = name, ir.DataType.FLOAT, ir.Shape(("B", "N", self.width))


def _take_sizes_of_positions(graph: ir.Graph) -> None:
    """Sizes that are those of the tokens are those of their positions, which every stage has."""
    tokens, positions = (
        [value for value in graph.inputs if value.name == name] for name in ("input_ids", "position_ids")
    )
    for node, index in list(tokens[0].uses()):
        if node.op_type == "Shape":
            node.replace_input_with(index, positions[0])


def _of_tokens(graph: ir.Graph) -> set[ir.Value]:
    """What hangs on tokens or the KV cache."""
    found = {value for value in graph.inputs if str(value.name).startswith(("input_ids", "past_"))}
    for node in graph:
        if any(value in found for value in node.inputs):
            found.update(node.outputs)
    return found


def _single(crossing: Sequence[ir.Value], layer: int) -> ir.Value:
    if len(crossing) != 1:
        raise ExportError(
            f"Between layers {layer - 1} and {layer} of this model {len(crossing)} values cross that hang on its "
            "tokens, where a stage hands on one: it is not split."
        )
    return crossing[0]


def _width(crossing: Sequence[ir.Value], manifest: Manifest) -> int:
    sizes = {value.shape[-1] for value in crossing if value.shape is not None and isinstance(value.shape[-1], int)}
    if manifest.hidden_size is not None:
        sizes.add(manifest.hidden_size)
    if len(sizes) != 1:
        raise ExportError("The size of what crosses between layers is not known: export the model again.")
    return sizes.pop()


def layer_seconds(layer_bytes: Sequence[int], write_stage: WriteStage) -> list[float]:
    """Seconds of each layer in a pass of one node, what a session takes for itself left out.

    The first layer has the embeddings, which take less than their bytes, the last one the head. Raises ProviderError.
    """
    num_layers = len(layer_bytes)
    kinds = [_kind(layer, num_layers, layer_bytes[layer]) for layer in range(num_layers)]
    seconds: dict[tuple[int, int], float] = {}
    for layer, kind in enumerate(kinds):
        if kind not in seconds:
            seconds[kind] = _timed(range(layer, layer + 1), num_layers, write_stage)
    apart_s = 0.0
    for layer in range(1, num_layers - 2):
        if kinds[layer] == kinds[layer + 1]:
            pair_s = _timed(range(layer, layer + 2), num_layers, write_stage)
            apart_s = min(max(2 * seconds[kinds[layer]] - pair_s, 0.0), 0.9 * min(seconds.values()))
            break
    return [seconds[kind] - apart_s for kind in kinds]


def _kind(layer: int, num_layers: int, num_bytes: int) -> tuple[int, int]:
    place = 1 if layer == 0 else 3 if layer == num_layers - 1 else 2
    return place, round(math.log(max(num_bytes, 1)) / _ALIKE)


def _timed(layers: range, num_layers: int, write_stage: WriteStage) -> float:
    number = 1 if layers.start == 0 else 3 if layers.stop == num_layers else 2
    with TemporaryDirectory() as place:
        folder = Path(place) / "stage"
        write_stage(folder, layers, number, 3)
        others = np.ones(_CACHE_BYTES, np.uint8)
        return HostStage.open(ModelPackage.open(folder), 1).pass_seconds(others.sum)
