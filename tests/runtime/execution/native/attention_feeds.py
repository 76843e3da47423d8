"""Attention of a chain of nodes: its graph, what it is fed, and rows of a KV cache of eight bits in numpy."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.quantize.hadamard import block_size, hadamard
from reader_edge_export.trace.markers import MARKER_DOMAIN, TREE_ATTENTION
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.package.manifest import MASKED
from tests.runtime.execution.native_operator import Attention, Build

LARGEST_HALF = 65504


def build_attention(
    head_size: int, num_kv_heads: int, group_size: int, has_sinks: bool = False
) -> tuple[dict[str, Sequence[int | str]], Build]:
    """Sizes of the inputs by name, and what makes the graph of them."""
    num_heads = num_kv_heads * group_size
    new, rows = ("B", num_kv_heads, "N", head_size), ("B", num_kv_heads, "S", head_size)
    inputs: dict[str, Sequence[int | str]] = {
        "query": ("B", num_heads, "N", head_size),
        "key": new,
        "value": new,
        "past_key": rows,
        "past_value": rows,
        "write_pos": ("B",),
        "mask": ("B", 1, "N", "M"),
        **({"sinks": (num_heads,)} if has_sinks else {}),
    }
    attributes = {
        "scale": 1.1 * head_size**-0.5,  # no power of two, by which any order of factors gives the same bits
        "softcap": 0.0,
        "num_heads": num_heads,
        "kv_heads": num_kv_heads,
        "head_dim": head_size,
    }

    def build(editor: GraphEditor, values: Sequence[ir.Value]) -> Sequence[ir.Value]:
        return editor.op_multi(TREE_ATTENTION, values, 3, attributes, domain=MARKER_DOMAIN)

    return inputs, build


def attention_feed(
    rng: np.random.Generator, past: int, num_nodes: int, num_kv_heads: int, group_size: int, head_size: int
) -> dict[str, npt.NDArray[np.generic]]:
    """A chain of nodes behind `past` random rows."""
    new, rows = ((1, num_kv_heads, count, head_size) for count in (num_nodes, past + num_nodes))
    mask = np.where(np.tri(num_nodes, past + num_nodes, past, dtype=bool), 0, MASKED).astype(np.float32)
    return {
        "query": rng.standard_normal((1, num_kv_heads * group_size, num_nodes, head_size), np.float32),
        "key": rng.standard_normal(new, np.float32),
        "value": rng.standard_normal(new, np.float32),
        "past_key": rng.standard_normal(rows, np.float32),
        "past_value": rng.standard_normal(rows, np.float32),
        "write_pos": np.array([past]),
        "mask": mask[None, None],
    }


def cached_feed(feed: dict[str, npt.NDArray[np.generic]], form: Attention) -> dict[str, npt.NDArray[np.generic]]:
    """The feed with its past as the cache holds it; keys are written turned, with signs, as the exporter draws them."""
    if form.kv_dtype == "float32":
        return feed
    key, value = feed["past_key"].astype(np.float32), feed["past_value"].astype(np.float32)
    if form.kv_dtype == "float16":
        return feed | {"past_key": halves(key), "past_value": halves(value)}
    return feed | {"past_key": rounded_rows(rotated_key(key)), "past_value": rounded_rows(value)}


def halves(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """As a cache of fp16 keeps them."""
    return np.clip(numbers, -LARGEST_HALF, LARGEST_HALF).astype(np.float16)


def rotated_key(key: Float32Array) -> Float32Array:
    """key (..., D) with the exporter's signs, times its matrix."""
    size = key.shape[-1]
    signs = np.random.default_rng(0).choice(np.array([-1, 1], np.float32), size)
    block = block_size(size)
    blocks = (key * signs).reshape(*key.shape[:-1], -1, block) @ hadamard(block)
    rotation: Float32Array = blocks.reshape(key.shape).astype(np.float32)
    return rotation


def rounded_rows(rows: Float32Array) -> npt.NDArray[np.int8]:
    """rows (..., D) -> (..., D + 2)."""
    top = np.maximum(np.abs(rows).max(axis=-1, keepdims=True), 1e-30).astype(np.float64)
    exponent = np.clip(np.floor(np.log2(top)), -100, 100)
    parts = np.minimum(np.ceil(top / 2**exponent * 64), 128)
    steps = np.rint(np.clip(rows * (127 * 64 / (parts * 2**exponent)), -127, 127))
    return np.concatenate([steps, parts - 192, exponent], axis=-1).astype(np.int8)


def read_rows(rows: npt.NDArray[np.int8]) -> Float32Array:
    """rows (..., D + 2) -> (..., D)."""
    wide = rows.astype(np.float64)
    numbers = wide[..., :-2] * (wide[..., -2:-1] + 192) / (127 * 64) * 2 ** wide[..., -1:]
    return numbers.astype(np.float32)
