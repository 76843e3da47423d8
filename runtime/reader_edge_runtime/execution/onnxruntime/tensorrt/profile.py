"""The sizes that an engine of TensorRT is built for: one capacity, and every size that a pass is padded to."""

from reader_edge_runtime.execution.onnxruntime.device.buckets import TREE_SIZES, visible_bucket
from reader_edge_runtime.execution.onnxruntime.device.device_target import PREFILL_CHUNK
from reader_edge_runtime.execution.onnxruntime.graph_contract import input_tensors
from reader_edge_runtime.package.manifest import Manifest

CAPACITY_NAME = "S"  # of the graph's dimension that an engine fixes

_LIKELY_NODES = TREE_SIZES[3]
_LIKELY_VISIBLE = 1024

Shape = tuple[int, ...]
ShapeRange = tuple[Shape, Shape, Shape]  # least, likeliest, largest


def shape_ranges(manifest: Manifest, num_slots: int, num_rows: int) -> dict[str, ShapeRange]:
    """The shapes of each input of a graph for a cache of so many slots of `num_rows` rows, padding included."""
    sizes = (
        (1, 1, visible_bucket(1, num_rows), 1),
        (1, _LIKELY_NODES, visible_bucket(_LIKELY_VISIBLE, num_rows), _LIKELY_NODES),
        (num_slots, PREFILL_CHUNK, num_rows, PREFILL_CHUNK),
    )
    ends = [_shapes(manifest, num_rows, *each) for each in sizes]
    return {name: (ends[0][name], ends[1][name], ends[2][name]) for name in ends[0]}


def _shapes(
    manifest: Manifest, capacity: int, num_trees: int, num_nodes: int, num_visible: int, num_rows: int
) -> dict[str, Shape]:
    tensors = input_tensors(manifest, num_trees, num_nodes, num_visible, num_rows)
    kv = num_trees, manifest.num_kv_heads, capacity, manifest.head_dim
    return {name: shape for name, (_, shape) in tensors.items()} | dict.fromkeys(manifest.past_names(), kv)
