"""The small graph that keeps a walked path's KV rows where the cache lies on a device.

Inputs: `rows` int64 (K,), the rows to keep; `write_pos` int64 (B,), where they go; the KV inputs of the package.
Outputs: its KV outputs, bound to the same memory. The rows are gathered before they are written, so they may overlap.
"""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from reader_edge_runtime.package import Manifest

_DATA_TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
_OPSET, _IR_VERSION = 24, 11


def write_commit_graph(manifest: Manifest, graph: Path) -> None:
    """Write the commit graph of a package with these KV tensors."""
    data_type = _DATA_TYPES[manifest.kv_dtype]
    shape: list[str | int | None] = ["B", manifest.num_kv_heads, "S", manifest.head_dim]
    nodes, inputs, outputs = [], [], []
    for past, present in zip(manifest.past_names(), manifest.present_names(), strict=True):
        kept = past.replace("past_", "kept_")
        nodes.append(helper.make_node("Gather", [past, "rows"], [kept], f"gather.{past}", axis=2))
        nodes.append(helper.make_node("TensorScatter", [past, kept, "write_pos"], [present], f"scatter.{past}", axis=2))
        inputs.append(helper.make_tensor_value_info(past, data_type, shape))
        outputs.append(helper.make_tensor_value_info(present, data_type, shape))
    inputs.append(helper.make_tensor_value_info("rows", TensorProto.INT64, ["K"]))
    inputs.append(helper.make_tensor_value_info("write_pos", TensorProto.INT64, ["B"]))
    model = helper.make_model(
        helper.make_graph(nodes, "commit", inputs, outputs),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
    )
    onnx.save(model, graph)
    onnx.checker.check_model(graph, full_check=True)
