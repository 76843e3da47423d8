"""A bf16 graph with the same numbers in fp32, for checks where no provider multiplies bf16.

ONNX Runtime's CPU provider has no bf16 products. The twin has the package's own weights, rounded as they are, and its
own structure; only the rounding between operators is missing.
"""

from pathlib import Path

import numpy as np
import onnx_ir as ir

from reader_edge_runtime.package.manifest import GRAPH_NAME, WEIGHTS_NAME


def write_widened(graph: Path, folder: Path) -> None:
    """Write the fp32 twin of a bf16 graph, with its weights beside it, into `folder`."""
    model = ir.load(graph)
    for value in model.graph.initializers.values():
        if value.dtype == ir.DataType.BFLOAT16 and value.const_value is not None:
            value.const_value = ir.Tensor(value.const_value.numpy().astype(np.float32), name=value.name)
            value.dtype = ir.DataType.FLOAT
    for node in model.graph:
        for output in node.outputs:
            _widen(output)
        if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.BFLOAT16:
            node.attributes["to"] = ir.AttrInt64("to", int(ir.DataType.FLOAT))
    for value in model.graph.inputs:
        _widen(value)
    ir.save(model, folder / GRAPH_NAME, external_data=WEIGHTS_NAME)


def _widen(value: ir.Value) -> None:
    if value.dtype == ir.DataType.BFLOAT16:
        value.dtype = ir.DataType.FLOAT
