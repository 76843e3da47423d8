"""Turns the matrices that a trace left as names into initializers of its graph, whose values are read when stored."""

import onnx_ir as ir
import torch
from transformers.pytorch_utils import Conv1D

from reader_edge_export.onnx_graph.graph_editor import GraphEditor, constant_shape, sizes_of
from reader_edge_export.sources.source_model import SourceModel, is_product
from reader_edge_export.sources.weights import ExpertsTensor, Matrix, MatrixTensor
from reader_edge_export.trace.markers import (
    ATTENTION_SIZES,
    EMBEDDING,
    EXPERT_LINEAR,
    LINEAR,
    LOGIT_HEAD,
    NUM_RANKS,
    PARAMETER,
    TREE_ATTENTION,
    recurrence_markers,
)

# Small layers in which a rounding error would do much harm: the weight of the shared expert, the choice of experts, how
# versions of a state are mixed (Gemma 3n).
_SENSITIVE = (
    *("shared_expert_gate.weight", "router.proj.weight"),
    *("altup.modality_router.weight", "altup.prediction_coefs.weight", "altup.correction_coefs.weight"),
)


def insert_matrices(editor: GraphEditor, source: SourceModel) -> None:
    """Give every marker of a matrix its weight: Linear becomes MatMul, Embedding becomes Gather."""
    stored = _Initializers(editor, source)
    for node in list(editor.graph):
        if node.op_type == LINEAR:
            weight = stored.as_multiplied(node.attributes[PARAMETER].as_string())
            editor.replace(node, [editor.op("MatMul", [node.inputs[0], weight])])
        elif node.op_type == EMBEDDING:
            weight = stored.as_in_module(node.attributes[PARAMETER].as_string())
            editor.replace(node, [editor.op("Gather", [weight, node.inputs[0]], {"axis": 0})])
        elif node.op_type == EXPERT_LINEAR:
            weight = stored.of_experts(node.attributes[PARAMETER].as_string())
            num_ranks = {NUM_RANKS: node.attributes[NUM_RANKS].as_int()}
            editor.replace(node, [editor.op(EXPERT_LINEAR, [*node.inputs, weight], num_ranks, domain=node.domain)])
        elif node.op_type == LOGIT_HEAD:
            hidden, rows, *bias = node.inputs
            weight = stored.as_in_module(node.attributes[PARAMETER].as_string())
            logits = editor.op(LOGIT_HEAD, [hidden, rows, weight, *bias], domain=node.domain)
            editor.replace(node, [logits])
            _declare(editor.graph, "logits", "B", "R", constant_shape(weight)[0])
        elif node.op_type == "TopK":  # in an order that is known, as sums over them are
            node.attributes["sorted"] = ir.AttrInt64("sorted", 1)
        elif node.op_type == TREE_ATTENTION:
            _, num_heads, head_dim = (node.attributes[name].as_int() for name in ATTENTION_SIZES)
            for present in node.outputs[1:]:
                _declare(editor.graph, str(present.name), "B", num_heads, "S", head_dim)
    for marker in recurrence_markers(editor.graph):
        state, pending = (sizes_of(value) or [] for value in (marker.state, marker.pending))
        _declare(editor.graph, str(marker.node.outputs[1].name), "B", *state[1:])
        _declare(editor.graph, str(marker.node.outputs[2].name), "B", "N", *pending[2:])


def _declare(graph: ir.Graph, name: str, *sizes: int | str | None) -> None:
    """Set the sizes of one of the graph's outputs, which the trace does not know."""
    for value in graph.outputs:
        if value.name == name:
            value.shape = ir.Shape(sizes)


class _Initializers:
    """Of a graph, one for each matrix and the way it is used."""

    def __init__(self, editor: GraphEditor, source: SourceModel) -> None:
        self._editor = editor
        self._weights = source.weights
        self._shapes = {name: tuple(parameter.shape) for name, parameter in source.skeleton.named_parameters()}
        modules = list(source.skeleton.modules())
        self._inputs_first = {source.names[id(module.weight)] for module in modules if isinstance(module, Conv1D)}
        coarse = [module for module in modules if is_product(module) or isinstance(module, torch.nn.Embedding)]
        self._coarse = {source.names[id(module.weight)] for module in coarse}
        experts = source.experts.values()
        by_expert = [matrices for each in experts for matrices in (each.up, each.down)]
        by_head = [matrices for each in source.latent_heads for matrices in (each.keys, each.values)]
        self._experts = {matrices.name: matrices for matrices in (*by_expert, *by_head)}
        self._expert_values: dict[str, ir.Value] = {}
        self._values: dict[tuple[str, bool], ir.Value] = {}

    def as_multiplied(self, name: str) -> ir.Value:
        """The matrix (K, J) that rows are multiplied by."""
        return self._value(name, name not in self._inputs_first)

    def as_in_module(self, name: str) -> ir.Value:
        """The matrix as the module has it: an embedding (V, E)."""
        return self._value(name, False)

    def of_experts(self, name: str) -> ir.Value:
        """The matrices of all experts (X, J, K)."""
        if name not in self._expert_values:
            self._expert_values[name] = self._editor.initializer(ExpertsTensor(self._experts[name]))
        return self._expert_values[name]

    def _value(self, name: str, is_transposed: bool) -> ir.Value:
        if (name, is_transposed) not in self._values:
            first, second = self._shapes[name]
            shape = (second, first) if is_transposed else (first, second)
            is_sensitive = name not in self._coarse or name.endswith(_SENSITIVE)
            tensor = MatrixTensor(Matrix(name, shape, is_transposed, self._weights, is_sensitive))
            self._values[name, is_transposed] = self._editor.initializer(tensor)
        return self._values[name, is_transposed]
