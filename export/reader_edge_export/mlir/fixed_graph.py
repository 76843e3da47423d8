"""A package's graph for passes of one width: one tree, N nodes, as many logit rows.

M and S stay free: loops over the visible rows of a free number take a tenth longer than over a fixed one, and one
module serves them all.
"""

import math

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.optimizer import fold_constants

from reader_edge_export.onnx_graph.graph_editor import sizes_of

# Importers leave tensors of fewer elements in the text, and refer to a file for the others.
LEAST_PARAMETER = 64


def fix_width(model: ir.Model, width: int) -> None:
    """Give N and R their numbers, and fold what becomes of them; weights are not read."""
    sizes: dict[int | str | None, int] = {"B": 1, "N": width, "R": width}
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


def _is_small(node: ir.Node) -> bool:
    sizes = node.outputs[0].shape
    return sizes is not None and sizes.is_static() and math.prod(sizes.numpy()) < LEAST_PARAMETER
