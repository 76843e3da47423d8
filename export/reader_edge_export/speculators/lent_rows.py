"""Keys and values of a target as its cache has them, for checks of a speculator that reads them."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import torch

from reader_edge_export.lowering.cache_rows import cache_rows
from reader_edge_export.lowering.int8_cache import Int8CacheAttention
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.execution.onnxruntime.session import open_session


def cached_rows(lent: Mapping[int, tuple[torch.Tensor, torch.Tensor]], kv_dtype: str) -> dict[str, Array]:
    """Keys and values (1, H, N, D) of layers, by the names of a graph's inputs for its cache, (1, H, N, row size)."""
    found: dict[str, Array] = {}
    for number, rows in lent.items():
        pair = [each.contiguous().numpy() for each in rows]
        if kv_dtype == "int8":
            pair = _rounded(pair)
        elif kv_dtype == "float16":
            pair = [each.clip(-np.finfo(np.float16).max, np.finfo(np.float16).max) for each in pair]
        found |= {
            f"past_{kind}.{number}": each.astype(kv_dtype) for kind, each in zip(("key", "value"), pair, strict=True)
        }
    return found


def _rounded(pair: list[Array]) -> list[Array]:
    """By the operators of a target's graph."""
    shape, numbers = ir.Shape(pair[0].shape), ir.TensorType(ir.DataType.FLOAT)
    inputs = ir.Value(name="key", shape=shape, type=numbers), ir.Value(name="value", shape=shape, type=numbers)
    editor = GraphEditor(ir.Model(ir.Graph(inputs, [], nodes=[], opset_imports={"": 24}, name="rows"), ir_version=11))
    smoothing, matrix = Int8CacheAttention(editor).rotation(editor, pair[0].shape[-1])
    editor.graph.outputs.extend(cache_rows(editor, *inputs, smoothing, matrix))
    editor.append()
    session = open_session(ir.to_proto(editor.model).SerializeToString(), 1, None)
    rows: list[Array] = session.run(None, dict(zip(("key", "value"), pair, strict=True)))
    return rows
