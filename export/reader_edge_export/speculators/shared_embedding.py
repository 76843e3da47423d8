"""The target's embedding, looked up by a speculator that has none of its own where the target has it, and as it is
stored there."""

import re
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.onnx_graph.graph_editor import GraphEditor, constant_shape
from reader_edge_export.operators.block_linear import StoredBlocks
from reader_edge_export.operators.definitions import Int8Matrix
from reader_edge_export.operators.hadamard_linear import BlockMatrix
from reader_edge_export.quantize.hadamard import Hadamards, block_size
from reader_edge_export.quantize.vocabulary import Stored, embedding_lookup, look_up_stored, vocabulary_head

_NAMES = "embedding", "vocabulary"  # of initializers in graphs of quantised weights; tied, the second alone


def look_up_in_target(editor: GraphEditor, target: Path) -> None:
    """Have a speculator's embedding read the matrix of its target's graph, a file, if it would have another one.

    It would have the same where that is of fp32, or a table of int8 (`quantize.tables`), and it has the matrix anyway
    where its own logit head is tied to it.
    """
    lookup, (_, is_tied) = embedding_lookup(editor.graph), vocabulary_head(editor.graph)
    parts = _parts(ir.load(target).graph)
    if lookup is None or is_tied or not parts or set(parts) == {"int8", "scale"}:
        return
    weight = lookup.inputs[0]
    assert weight is not None
    look_up_stored(editor, _stored(editor, parts, constant_shape(weight)), lookup)
    del editor.graph.initializers[str(weight.name)]  # what is left is stored


def _parts(graph: ir.Graph) -> Mapping[str, ir.TensorProtocol]:
    """The tensors of a target's embedding, by the names of their forms; none in fp32."""
    found: dict[str, dict[str, ir.TensorProtocol]] = {name: {} for name in _NAMES}
    for name, value in graph.initializers.items():
        match = re.fullmatch(rf"({'|'.join(_NAMES)})\.(.+)\.\d+", name)
        if match is not None and value.const_value is not None:
            found[match[1]][match[2]] = value.const_value
    return next(filter(None, found.values()), {})


def _stored(editor: GraphEditor, parts: Mapping[str, ir.TensorProtocol], shape: tuple[int, ...]) -> Stored:
    """The matrix (V, E) of these tensors, which become initializers."""
    values: dict[str, ir.Value] = {}
    for form, tensor in parts.items():
        tensor.name = f"target.{tensor.name}"
        values[form] = editor.initializer(tensor)
    if "smoothing" not in values:
        kind = next(iter(values)).partition(".")[0]
        block_type = BLOCK_TYPES[kind.upper()]
        num_tokens, width = shape
        arrays = {part: values[f"{kind}.{part}"] for part in block_type.parts}
        return StoredBlocks(block_type, (num_tokens, width), arrays)
    rotation = values["smoothing"], Hadamards(editor).value(block_size(shape[1]))
    if "int4" in values:
        return BlockMatrix(values["int4"], values["block_scale"], values["scale"], *rotation)
    return Int8Matrix(values["int8"], values["scale"], *rotation)
