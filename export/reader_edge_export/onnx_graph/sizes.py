"""Folds the arithmetic on sizes that a trace leaves: half of a small model's operators, and none of its work.

Types and sizes come from ONNX's own inference and folding of one node after the other, which runs with numbers in the
place of the free sizes ("B", "N", ...), twice and with different ones: a size that stays is a number, one that changes
along with a free size bears its name, and any other is not known (None). A wrong size would fail the parity checks.
"""

import math
from collections.abc import Iterable
from itertools import chain, zip_longest

import numpy as np
import onnx_ir as ir
from onnxscript.optimizer import fold_constants

from reader_edge_export.onnx_graph.graph_editor import GraphEditor, constant_shape, sizes_of, weight_of
from reader_edge_export.trace.markers import (
    ATTENTION_SIZES,
    EXPERT_LINEAR,
    LAYER_STATE,
    LOGIT_HEAD,
    MARKER_DOMAIN,
    NUM_RANKS,
    RECURRENCES,
    SHARED_ATTENTION,
    TREE_ATTENTION,
    TREE_CONV,
    TREE_DELTA,
    TREE_MAMBA2,
)
from reader_edge_runtime.errors import ExportError

Size = int | str | None
Sizes = tuple[Size, ...]

_FREE_SIZES = {"B": (7, 23), "N": (11, 29), "M": (13, 31), "S": (17, 37), "R": (19, 41), "P": (43, 47)}
_FREE_SIZES["K"] = (53, 61)  # rows of images
_FREE_SIZES |= {"N1": (5, 9), "N2": (6, 20)}  # nodes of a speculator, N together
_FREE_SIZES["T"] = (7 * 11, 23 * 29)  # rows of all sequences, one behind the other
_NAMES: dict[tuple[object, object], str] = {numbers: name for name, numbers in _FREE_SIZES.items()}
_SIZES_OF_NODES = ("B", "N")
_OUTPUT_AXES = {TREE_CONV: (2,), TREE_DELTA: (1, 3), TREE_MAMBA2: (1, 3)}  # of a state, those that its output has too
_MAX_CONTENT = 8
_READ_AT_ONCE = 64  # values: each that is replaced takes as long as its reader has inputs


def fold_sizes(editor: GraphEditor) -> None:
    """Replace sizes that are numbers by constants, read the free ones off the nodes, and let reshapes copy them.

    Afterwards every value has its type, and its sizes as far as they are known. Raises ExportError: see `infer_sizes`.
    """
    contents = infer_sizes(editor.graph)
    for node in list(editor.graph):
        if node.op_type == "Reshape":
            _copy_sizes(editor, node)
        content = contents.get(node.outputs[0])
        if content is not None and not node.outputs[0].is_graph_output():
            _replace_content(editor, node, content)


def infer_sizes(graph: ir.Graph) -> dict[ir.Value, Sizes]:
    """Give the values of a traced graph their types and sizes; outputs, but for states between layers, declare theirs.

    Returns the elements of integer vectors and scalars that hold sizes. Raises ExportError for an operator that ONNX
    does not know.
    """
    first, second = (_numbered(graph, run) for run in range(2))
    contents = {}
    computed = chain.from_iterable(node.outputs for node in graph)
    for value in (*graph.inputs, *graph.initializers.values(), *computed):
        one, other = (values.get(value.name, value) for values in (first, second))  # initializers are as they were
        if one.dtype is None:
            node = value.producer()
            raise ExportError(f"ONNX cannot infer the operator {node and node.op_type} of this model.")
        value.dtype = one.dtype
        is_declared = value.is_graph_output() and not str(value.name).startswith(LAYER_STATE)
        if one.shape is not None and other.shape is not None and not is_declared:
            value.shape = ir.Shape(_named(one.shape, other.shape))
        content, other_content = _content(one), _content(other)
        if content is not None and other_content is not None and len(content) == len(other_content):
            contents[value] = _named(content, other_content)
    return contents


def _replace_content(editor: GraphEditor, node: ir.Node, content: Sizes) -> None:
    """A constant in the place of known numbers, a size of the first input, of nodes, in the place of a free one."""
    output = node.outputs[0]
    rank = None if output.shape is None else len(output.shape)
    numbers = [size for size in content if isinstance(size, int)]
    if len(numbers) == len(content) and rank in (0, 1):
        new = editor.constant(np.array(numbers if rank else numbers[0], np.int64), "size")
    elif rank == 0 and content[0] in _SIZES_OF_NODES:
        size = editor.size_of(editor.graph.inputs[0], _SIZES_OF_NODES.index(str(content[0])))
        new = editor.op("Squeeze", [size, editor.int64s(0)], dtype=ir.DataType.INT64)
        editor.insert_before(node)
    else:
        return
    output.replace_all_uses_with(new)


def _copy_sizes(editor: GraphEditor, node: ir.Node) -> None:
    """Let a reshape copy the free sizes that stay at their place, instead of getting them."""
    before, wanted = sizes_of(node.inputs[0]), sizes_of(node.outputs[0])
    if before is None or wanted is None or weight_of(node.inputs[1]) is not None:
        return
    copied = [0 if size == old and isinstance(size, str) else size for size, old in zip_longest(wanted, before)]
    copied = copied[: len(wanted)]
    if copied.count(None) == 1:
        copied[copied.index(None)] = -1
    numbers = [size for size in copied if isinstance(size, int)]
    if len(numbers) == len(wanted):
        node.replace_input_with(1, editor.int64s(*numbers))


def _named(first: Iterable[object], second: Iterable[object]) -> Sizes:
    """The numbers that stay, and the names of those that change; None for a size that is no number."""
    pairs = zip(first, second, strict=True)
    return tuple(a if a == b and isinstance(a, int) else _NAMES.get((a, b)) for a, b in pairs)


def _content(value: ir.Value) -> list[int] | None:
    tensor = value.const_value
    if tensor is None or tensor.dtype != ir.DataType.INT64 or tensor.size > _MAX_CONTENT:
        return None
    content: list[int] = tensor.numpy().ravel().tolist()
    return content


def _numbered(graph: ir.Graph, run: int) -> dict[str | None, ir.Value]:
    """A copy's inputs and all that it computes, by name, inferred with numbers for the free sizes."""
    model = ir.Model(graph.clone(), ir_version=8)
    inputs = model.graph.inputs
    computed = list(chain.from_iterable(node.outputs for node in model.graph))
    names = [value.name for value in computed]
    known: dict[ir.Value, Iterable[object]] = {value: value.shape or () for value in inputs}
    for node in model.graph:
        for output in node.outputs:
            output.shape = output.type = None
        known.update(zip(node.outputs, _marker_sizes(node), strict=False))
    for value, sizes in known.items():
        value.dtype = value.dtype or ir.DataType.FLOAT
        value.shape = ir.Shape([size if isinstance(size, int) else _FREE_SIZES[str(size)][run] for size in sizes])
    parts = [computed[start : start + _READ_AT_ONCE] for start in range(0, len(computed), _READ_AT_ONCE)]
    readers = [ir.Node(MARKER_DOMAIN, "Reader", part) for part in parts]  # so that no value is folded away
    model.graph.extend(readers)
    fold_constants(model, onnx_shape_inference=True, should_fold=_is_small)
    read = chain.from_iterable(reader.inputs for reader in readers)
    values = zip(names, read, strict=True)
    return {value.name: value for value in inputs} | {name: value for name, value in values if value is not None}


def _marker_sizes(node: ir.Node) -> list[Sizes]:
    """The sizes of a marker's outputs; [] of any other node."""
    if node.op_type == TREE_ATTENTION:
        num_heads, num_kv_heads, head_dim = (node.attributes[name].as_int() for name in ATTENTION_SIZES)
        return [("B", num_heads, "N", head_dim), *[("B", num_kv_heads, "S", head_dim)] * 2]
    if node.op_type == SHARED_ATTENTION:
        num_heads, _, head_dim = (node.attributes[name].as_int() for name in ATTENTION_SIZES)
        return [("B", num_heads, "N", head_dim)]
    if node.op_type in RECURRENCES:
        return _recurrence_sizes(node)
    if node.op_type == EXPERT_LINEAR and (weight_sizes := sizes_of(node.inputs[2])):
        return [("T", node.attributes[NUM_RANKS].as_int(), weight_sizes[1])]
    weight = node.inputs[2] if node.op_type == LOGIT_HEAD else None
    return [] if weight is None else [("B", "R", constant_shape(weight)[0])]


def _recurrence_sizes(node: ir.Node) -> list[Sizes]:
    """Of a recurrent marker: its output, its state and capsules."""
    state, pending = (sizes_of(value) or [] for value in node.inputs[3:5])
    output = [state[axis] for axis in _OUTPUT_AXES[node.op_type]]
    return [("B", "N", *output), ("B", *state[1:]), ("B", "N", *pending[2:])]


def _is_small(node: ir.Node) -> bool:
    sizes = node.outputs[0].shape
    return sizes is not None and sizes.is_static() and math.prod(sizes.numpy()) <= _MAX_CONTENT
