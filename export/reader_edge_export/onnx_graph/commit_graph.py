"""The small graph that keeps a walked path's KV rows where the cache lies on a device.

Inputs: `kv` (C, H, S, D), key or value of C (layer, slot) pairs; `rows` int64 (K,), the rows to keep; `write_pos` int64
(C,), where they go. Output: `moved`, bound to the memory of `kv`. Two kernels move the rows of all layers and slots.
The rows are gathered before they are written, so they may overlap.
"""

from pathlib import Path

import onnx

_ELEMENT_TYPES = {"float32": "float", "float16": "float16", "bfloat16": "bfloat16"}
_TEXT = """
<ir_version: 11, opset_import: ["" : 24]>
commit (KV kv, int64[K] rows, int64[C] write_pos) => (KV moved) {
  kept = Gather <axis = 2> (kv, rows)
  moved = TensorScatter <axis = 2> (kv, kept, write_pos)
}
"""


def write_commit_graph(graph: Path, kv_dtype: str, num_kv_heads: int, head_dim: int) -> None:
    """Write the commit graph of a package with such KV tensors."""
    kv_type = f"{_ELEMENT_TYPES[kv_dtype]}[C,{num_kv_heads},S,{head_dim}]"
    onnx.save(onnx.parser.parse_model(_TEXT.replace("KV", kv_type)), graph)
    onnx.checker.check_model(graph, full_check=True)
