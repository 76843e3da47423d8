"""A graph of one operator, for its definition and its native kernel to run; attention and what it is fed."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort
import pytest

from reader_edge_export.lowering.attention_lowering import lower_attention
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.definitions import OPERATOR_DOMAIN
from reader_edge_export.quantize.hadamard import block_size, hadamard
from reader_edge_export.trace.markers import MARKER_DOMAIN, TREE_ATTENTION
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import cpu_options
from reader_edge_runtime.package.manifest import MASKED

Build = Callable[[GraphEditor, Sequence[ir.Value]], Sequence[ir.Value]]


needs_kernels = pytest.mark.skipif(
    native_library() is None,
    reason="no native kernels: `python native/build_library.py` builds them, or they are not for this processor",
)


@dataclass(frozen=True, slots=True)
class Attention:
    """How attention is lowered: whether weights and values are integers, and the type of the KV cache."""

    is_quantized: bool
    kv_dtype: str = "float32"


_INT64_INPUTS = ("write_pos", "parents", "num_kept", "num_pending", "experts", "indices")


EXACT, INTEGER, INT8_CACHE = Attention(False), Attention(True), Attention(True, "int8")
EXACT_HALF, INTEGER_HALF = Attention(False, "float16"), Attention(True, "float16")
FORMS = (EXACT, EXACT_HALF, INTEGER, INTEGER_HALF, INT8_CACHE)


# What definitions gave, by graph and feed: every instruction set is held to the same, which takes longest.
_defined: dict[bytes, Sequence[Float32Array]] = {}


class Operator:
    """A graph of one operator, run by its own definition and by its native kernel."""

    def __init__(
        self, folder: Path, inputs: Mapping[str, Sequence[int | str]], build: Build, attention: Attention = EXACT
    ) -> None:
        model = operator_model(inputs, build, attention)
        self._graph = folder / "pure.onnx"
        ir.save(model, self._graph)
        self._native = _session(left_to_kernels(model, folder), native_library())

    def check(self, **feed: npt.NDArray[np.generic]) -> Sequence[Float32Array]:
        """Assert the same bits both ways; the outputs."""
        outputs = self.run_native(feed)
        for ours, theirs in zip(outputs, self.run_definition(feed), strict=True):
            np.testing.assert_array_equal(ours.view(np.uint8), theirs.view(np.uint8))
        return outputs

    def run_definition(self, feed: Mapping[str, npt.NDArray[np.generic]]) -> Sequence[Float32Array]:
        """The outputs of the definition alone."""
        digest = hashlib.sha256(self._graph.read_bytes())
        for name, array in sorted(feed.items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
        outputs = _defined.get(digest.digest())
        if outputs is None:
            outputs = _defined[digest.digest()] = self._definition.run(None, dict(feed))
        return outputs

    def run_native(self, feed: Mapping[str, npt.NDArray[np.generic]]) -> Sequence[Float32Array]:
        """The outputs of the kernel alone."""
        outputs: Sequence[Float32Array] = self._native.run(None, dict(feed))
        return outputs

    @cached_property
    def _definition(self) -> ort.InferenceSession:
        return _session(self._graph, None)


def operator_model(inputs: Mapping[str, Sequence[int | str]], build: Build, attention: Attention = EXACT) -> ir.Model:
    """A model of the operators that `build` makes of the inputs."""
    values = [_value(name, sizes) for name, sizes in inputs.items()]
    model = ir.Model(ir.Graph(values, [], nodes=[], opset_imports={"": 24}, name="one"), ir_version=11)
    editor = GraphEditor(model)
    model.graph.outputs.extend(build(editor, values))
    editor.append()
    if any(node.op_type == TREE_ATTENTION for node in model.graph):
        lower_attention(editor, "exact", attention.is_quantized, attention.kv_dtype)
    model.graph.opset_imports.update({OPERATOR_DOMAIN: 1, "com.microsoft": 1})
    return model


def left_to_kernels(model: ir.Model, folder: Path) -> Path:
    """Write the model without the definitions of its operators."""
    model.functions.clear()
    ir.save(model, folder / "native.onnx")
    return folder / "native.onnx"


def thread_options(num_threads: int) -> ort.SessionOptions:
    """ONNX Runtime's options for so many threads, also where this process has fewer cores, as pytest's workers do."""
    options = cpu_options(1)
    options.intra_op_num_threads = num_threads
    return options


def _value(name: str, sizes: Sequence[int | str]) -> ir.Value:
    dtype = ir.DataType.INT64 if name in _INT64_INPUTS else ir.DataType.FLOAT
    return ir.Value(name=name, shape=ir.Shape(sizes), type=ir.TensorType(dtype))


def _session(graph: Path, library: Path | None) -> ort.InferenceSession:
    options = thread_options(2)
    if library is not None:
        options.register_custom_ops_library(str(library))
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


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
