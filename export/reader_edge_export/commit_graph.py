"""The small graph that keeps a walked path's KV rows where the cache lies on a device.

Inputs: `kv` (C, H, S, D), key or value of C (layer, slot) pairs; `rows` int64 (K,), the rows to keep; `write_pos` int64
(C,), where they go. Output: `moved`, bound to the memory of `kv`. Two kernels move the rows of all layers and slots.
The rows are gathered before they are written, so they may overlap.
"""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from reader_edge_runtime.package.manifest import Manifest

_DATA_TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
_OPSET, _IR_VERSION = 24, 11


def write_commit_graph(manifest: Manifest, graph: Path) -> None:
    """Write the commit graph of a package with these KV tensors."""
    data_type = _DATA_TYPES[manifest.kv_dtype]
    shape: list[str | int | None] = ["C", manifest.num_kv_heads, "S", manifest.head_dim]
    nodes = [
        helper.make_node("Gather", ["kv", "rows"], ["kept"], "gather", axis=2),
        helper.make_node("TensorScatter", ["kv", "kept", "write_pos"], ["moved"], "scatter", axis=2),
    ]
    inputs = [
        helper.make_tensor_value_info("kv", data_type, shape),
        helper.make_tensor_value_info("rows", TensorProto.INT64, ["K"]),
        helper.make_tensor_value_info("write_pos", TensorProto.INT64, ["C"]),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "commit", inputs, [helper.make_tensor_value_info("moved", data_type, shape)]),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
    )
    onnx.save(model, graph)
    onnx.checker.check_model(graph, full_check=True)
