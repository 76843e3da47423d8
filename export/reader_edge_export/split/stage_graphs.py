"""The graphs of stages: cut where the residual stream is all that crosses.

What hangs on neither tokens nor the KV cache, as masks and angles, is computed again in every stage that reads it.
"""

from collections.abc import Sequence
from itertools import pairwise

import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_parts import NodeOrder, cuts
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.stage_part import HANDED_IN, HANDED_OUT


class StageGraphs:
    """layer_bytes: of the weights that each layer reads; the embeddings count for the first, the head for the last.

    width: numbers of the residual stream.
    """

    def __init__(self, model: ir.Model, manifest: Manifest) -> None:
        """Raises ExportError where more than one value crosses between two layers."""
        self._model = model
        self._manifest = manifest
        order = NodeOrder(model.graph, set(manifest.present_names()))
        positions = cuts(order, manifest)
        bounds = [0, *positions, order.num_nodes]
        self.layer_bytes = [order.num_weight_bytes(*pair) for pair in pairwise(bounds)]
        if len(self.layer_bytes) != manifest.num_layers:
            raise ExportError(f"The graph has {len(self.layer_bytes)} layers that can be told apart: it is not split.")
        tokens = _of_tokens(model.graph)
        self._crossing = [
            _single([value for value in order.live(position) if value in tokens], layer)
            for layer, position in enumerate(positions, 1)
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
        answers = [value for name, value in ends.items() if not name.startswith(("present_", "layer_state."))]
        results = answers if is_last else [self._crossing[layers.stop - 1]]
        cut = ir.convenience.extract(
            graph, [first, *others, *(entries[name] for name in past)], [*results, *(ends[name] for name in present)]
        )
        for value in list(cut.inputs):
            if not value.uses():
                cut.inputs.remove(value)
        self._name(cut, layers, None if is_first else cut.inputs[0], None if is_last else cut.outputs[0])
        functions = [function.clone() for function in self._model.functions.values()]
        stage = ir.Model(cut, ir_version=self._model.ir_version, functions=functions)
        stage.metadata_props.update(self._model.metadata_props)
        return stage

    def _name(self, graph: ir.Graph, layers: range, entry: ir.Value | None, result: ir.Value | None) -> None:
        for value in (*graph.inputs, *graph.outputs):
            stem, _, number = str(value.name).rpartition(".")
            if stem.startswith(("past_", "present_")):
                value.name = f"{stem}.{int(number) - layers.start}"
        for value, name in ((entry, HANDED_IN), (result, HANDED_OUT)):
            if value is not None:
                value.name, value.dtype, value.shape = name, ir.DataType.FLOAT, ir.Shape(("B", "N", self.width))


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
    sizes |= {manifest.hidden_size} - {None}
    if len(sizes) != 1:
        raise ExportError("The size of what crosses between layers is not known: export the model again.")
    width = sizes.pop()
    assert isinstance(width, int)
    return width
