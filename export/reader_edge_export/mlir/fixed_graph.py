"""A package's graph for passes of one width: one tree, N nodes, as many logit rows.

M and S stay free for processors: loops over the visible rows of a free number take a tenth longer than over a fixed
one, and one module serves them all. For devices they are fixed, and alike.
"""

import math

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.optimizer import fold_constants

from reader_edge_export.onnx_graph.graph_editor import sizes_of

# Importers leave tensors of fewer elements in the text, and refer to a file for the others.
LEAST_PARAMETER = 64


def fix_width(model: ir.Model, width: int, num_visible: int | None = None) -> None:
    """Give the free sizes their numbers, and fold what becomes of them; weights are not read.

    num_visible: M, and S; None leaves them free.
    """
    sizes: dict[int | str | None, int] = {"B": 1, "N": width, "R": width}
    if num_visible is not None:
        sizes |= {"M": num_visible, "S": num_visible}
        _see_all(model)
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.shape = ir.Shape([sizes.get(size, size) for size in sizes_of(value) or ()])
    for node in model.graph:
        for output in node.outputs:
            if not output.is_graph_output():
                output.shape = None
    fold_constants(model, onnx_shape_inference=True, should_fold=_is_small)
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) and tensor.size < LEAST_PARAMETER:
            value.const_value = ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)
    for tidy in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.IdentityEliminationPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
    ):
        tidy(model)


def _see_all(model: ir.Model) -> None:
    """Where a pass is given what it sees of the past and no more, nothing is cut out of it."""
    for node in list(model.graph):
        data = node.inputs[0] if node.inputs else None
        if node.op_type == "Slice" and data is not None and str(data.name).startswith("past_"):
            node.outputs[0].replace_all_uses_with(data)
            model.graph.remove(node, safe=True)


def _is_small(node: ir.Node) -> bool:
    sizes = node.outputs[0].shape
    return sizes is not None and sizes.is_static() and math.prod(sizes.numpy()) < LEAST_PARAMETER
