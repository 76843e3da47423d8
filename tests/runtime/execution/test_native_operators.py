"""Native kernels one operator at a time: the bits of its definition, at odd sizes and with extreme numbers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.lowering import lower_attention
from reader_edge_export.markers import MARKER_DOMAIN, TREE_ATTENTION
from reader_edge_export.operators import OPERATOR_DOMAIN, rotary_heads, row_linear, swiglu
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import open_session
from reader_edge_runtime.package.manifest import MASKED

Float32Array = npt.NDArray[np.float32]
Build = Callable[[GraphEditor, Sequence[ir.Value]], Sequence[ir.Value]]

_MAGNITUDES = [0.0, 1e-45, 1e-30, 1, 18, 87, 88.7, 88.8, 104, 1e4, float(np.finfo(np.float32).max), np.inf]
EXTREMES = np.outer(_MAGNITUDES, [1, -1]).astype(np.float32).ravel()
_ROTARY_INPUTS: dict[str, Sequence[int | str]] = {name: ("B", "N", name) for name in ("qkv", "cosines", "sines")}

pytestmark = pytest.mark.skipif(
    native_library() is None,
    reason="reader-edge-native is not installed (pip install ./native; it needs a C++ compiler) or not for this CPU",
)


class Operator:
    """A graph of one operator, run by its own definition and by its native kernel."""

    def __init__(
        self, folder: Path, inputs: Mapping[str, Sequence[int | str]], build: Build, is_quantized: bool = False
    ) -> None:
        model = _model(inputs, build, is_quantized)
        ir.save(model, folder / "pure.onnx")
        self._sessions = (
            _session(folder / "pure.onnx", None),
            _session(_left_to_kernels(model, folder), native_library()),
        )

    def check(self, **feed: npt.NDArray[np.generic]) -> Sequence[Float32Array]:
        """Assert the same bits both ways; the outputs."""
        pure, native = (session.run(None, feed) for session in self._sessions)
        for ours, theirs in zip(native, pure, strict=True):
            np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))
        outputs: Sequence[Float32Array] = native
        return outputs

    def run_native(self, feed: Mapping[str, npt.NDArray[np.generic]]) -> Sequence[Float32Array]:
        """The outputs of the kernel alone."""
        outputs: Sequence[Float32Array] = self._sessions[1].run(None, dict(feed))
        return outputs


def _model(inputs: Mapping[str, Sequence[int | str]], build: Build, is_quantized: bool = False) -> ir.Model:
    """A model of the operators that `build` makes of the inputs."""
    values = [_value(name, sizes) for name, sizes in inputs.items()]
    model = ir.Model(ir.Graph(values, [], nodes=[], opset_imports={"": 24}, name="one"), ir_version=11)
    editor = GraphEditor(model)
    model.graph.outputs.extend(build(editor, values))
    editor.append()
    if any(node.op_type == TREE_ATTENTION for node in model.graph):
        lower_attention(editor, "exact", is_quantized)
    model.graph.opset_imports.update({OPERATOR_DOMAIN: 1, "com.microsoft": 1})
    return model


def _left_to_kernels(model: ir.Model, folder: Path) -> Path:
    """Write the model without the definitions of its operators."""
    model.functions.clear()
    ir.save(model, folder / "native.onnx")
    return folder / "native.onnx"


def _value(name: str, sizes: Sequence[int | str]) -> ir.Value:
    dtype = ir.DataType.INT64 if name == "write_pos" else ir.DataType.FLOAT
    return ir.Value(name=name, shape=ir.Shape(sizes), type=ir.TensorType(dtype))


def _session(graph: Path, library: Path | None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    if library is not None:
        options.register_custom_ops_library(str(library))
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("is_quantized", [False, True])
@pytest.mark.parametrize("past", [0, 40, 300])
@pytest.mark.parametrize(("head_size", "group_size"), [(256, 1), (136, 1), (256, 2), (64, 1), (64, 7), (80, 3), (8, 2)])
def test_attention_keeps_the_bits(
    head_size: int, group_size: int, past: int, is_quantized: bool, tmp_path: Path
) -> None:
    num_kv_heads = 2
    attention = _attention(tmp_path, head_size, num_kv_heads, group_size, is_quantized)
    rng = np.random.default_rng(head_size + group_size)
    for num_nodes in (1, 2, 5, 17):
        attention.check(**_attention_feed(rng, past, num_nodes, num_kv_heads, group_size, head_size))


@pytest.mark.parametrize("is_quantized", [False, True])
def test_attention_of_extreme_values_keeps_the_bits(is_quantized: bool, tmp_path: Path) -> None:
    attention = _attention(tmp_path, 64, 2, 7, is_quantized)
    rng = np.random.default_rng(0)
    past, num_nodes = 130, 3
    values = rng.standard_normal((1, 2, past + num_nodes, 64), np.float32)
    values[:, :, ::5] = 0
    values *= 10.0 ** rng.integers(-40, 30, (1, 2, past + num_nodes, 1))
    feed = _attention_feed(rng, past, num_nodes, 2, 7, 64) | {"past_value": values.astype(np.float32)}
    attention.check(**feed)
    attention.check(**feed | {"value": np.zeros_like(feed["value"]), "past_value": np.zeros_like(values, np.float32)})
    attention.check(**feed | {"query": np.full((1, 14, num_nodes, 64), 300, np.float32)})  # all weight on few rows


@pytest.mark.parametrize(("is_quantized", "limit"), [(False, 1e-6), (True, 1e-3)])
def test_attention_is_the_softmax_mean_of_the_values(is_quantized: bool, limit: float, tmp_path: Path) -> None:
    past, num_nodes, num_kv_heads, group_size, head_size = 1000, 5, 2, 7, 64
    attention = _attention(tmp_path, head_size, num_kv_heads, group_size, is_quantized)
    feed = _attention_feed(np.random.default_rng(1), past, num_nodes, num_kv_heads, group_size, head_size)
    output = attention.check(**feed)[0]
    keys, values = (
        np.concatenate([feed[f"past_{name}"][:, :, :past], feed[name]], axis=2).astype(np.float64)
        for name in ("key", "value")
    )
    query = feed["query"].reshape(1, num_kv_heads, group_size * num_nodes, head_size).astype(np.float64)
    scores = query @ keys.swapaxes(2, 3) * 1.1 * head_size**-0.5 + np.tile(feed["mask"], (1, 1, group_size, 1))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights @ values / weights.sum(-1, keepdims=True)
    error = np.abs(output.reshape(wanted.shape) - wanted).max() / np.abs(wanted).max()
    assert error < limit


@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(8, 1), (100, 37), (896, 130), (64, 1152)])
def test_a_bias_keeps_the_bits(num_inputs: int, num_outputs: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(num_outputs)
    weight = rng.integers(-127, 128, (num_outputs, num_inputs)).astype(np.int8)
    scales, bias = rng.random(num_outputs, np.float32), rng.standard_normal(num_outputs, np.float32)

    def build(editor: GraphEditor, values: Sequence[ir.Value]) -> Sequence[ir.Value]:
        constants = (editor.constant(array, "constant") for array in (weight, scales, bias))
        return [row_linear(editor, values[0], *constants)]

    operator = Operator(tmp_path, {"rows": ("B", "N", num_inputs)}, build)
    for num_rows in (1, 2, 3, 7, 16, 200):
        rows = rng.standard_normal((2, num_rows, num_inputs), np.float32)
        rows[0, 0] = 0
        (output,) = operator.check(rows=rows)
        np.testing.assert_array_equal(output[0, 0], bias)


@pytest.mark.parametrize("width", [1, 7, 16, 100, 2048, 4864])
def test_swiglu_keeps_the_bits(width: int, tmp_path: Path) -> None:
    operator = Operator(tmp_path, {"rows": ["B", "N", 2 * width]}, lambda editor, values: [swiglu(editor, values[0])])
    rng = np.random.default_rng(width)
    for num_rows in (1, 2, 3, 16, 33):
        rows = 4 * rng.standard_normal((2, num_rows, 2 * width), np.float32)
        gate, up = rows[..., :width].astype(np.float64), rows[..., width:]
        (output,) = operator.check(rows=rows)
        np.testing.assert_allclose(output, gate / (1 + np.exp(-gate)) * up, rtol=1e-6)
        operator.check(rows=rows * np.float32(40))
    operator.check(rows=np.resize(EXTREMES, (1, 3, 2 * width)))


def test_swiglu_of_any_finite_gate_is_a_number(tmp_path: Path) -> None:
    gates = EXTREMES[np.isfinite(EXTREMES)]
    sizes = {"rows": [1, 2 * len(gates)]}
    operator = Operator(tmp_path, sizes, lambda editor, values: [swiglu(editor, values[0])])
    (output,) = operator.check(rows=np.concatenate([gates, np.ones_like(gates)])[None])
    assert np.isfinite(output).all()


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_size"), [(1, 1, 16), (14, 2, 64), (3, 3, 80), (4, 1, 256)])
def test_rotary_heads_keep_the_bits(num_heads: int, num_kv_heads: int, head_size: int, tmp_path: Path) -> None:
    width, half = (num_heads + 2 * num_kv_heads) * head_size, head_size // 2
    operator = Operator(
        tmp_path,
        {"qkv": ("B", "N", width), "cosines": ("B", "N", half), "sines": ("B", "N", half)},
        _rotary_heads(num_heads, num_kv_heads),
    )
    rng = np.random.default_rng(head_size)
    for batch, num_nodes in ((1, 1), (1, 2), (2, 3), (1, 16), (3, 33)):
        qkv = rng.standard_normal((batch, num_nodes, width), np.float32)
        angles = rng.uniform(0, 2 * np.pi, (batch, num_nodes, half)).astype(np.float32)
        query, key, value = operator.check(qkv=qkv, cosines=np.cos(angles), sines=np.sin(angles))
        heads = qkv.reshape(batch, num_nodes, -1, head_size).swapaxes(1, 2)
        np.testing.assert_array_equal(value, heads[:, num_heads + num_kv_heads :])
        x, y = np.split(heads[:, : num_heads + num_kv_heads].astype(np.float64), 2, axis=3)
        cosines, sines = np.cos(angles)[:, None], np.sin(angles)[:, None]
        turned = np.concatenate([x * cosines - y * sines, x * sines + y * cosines], axis=3)
        np.testing.assert_allclose(np.concatenate([query, key], axis=1), turned, atol=1e-6)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(0, 4), (4, 0), (0, 0)])
def test_a_product_without_inputs_or_outputs_is_refused(
    num_inputs: int, num_outputs: int, has_bias: bool, tmp_path: Path
) -> None:
    weight, scales = np.ones((num_outputs, num_inputs), np.int8), np.ones(num_outputs, np.float32)

    def build(editor: GraphEditor, values: Sequence[ir.Value]) -> Sequence[ir.Value]:
        weight_value, scales_value, bias = (editor.constant(array, "constant") for array in (weight, scales, scales))
        return [row_linear(editor, values[0], weight_value, scales_value, bias if has_bias else None)]

    graph = _left_to_kernels(_model({"rows": ("B", "N", num_inputs)}, build), tmp_path)
    with pytest.raises(ProviderError, match="RowLinear: its weight needs two axes, inputs and outputs"):
        open_session(graph, 1, native_library())


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads"), [(2**63 - 1, 1), (1, 2**63 - 1), (2**63 - 2, 2**62), (2**62, 2**62), (0, 1), (1, -1)]
)
def test_numbers_of_heads_out_of_range_are_refused(num_heads: int, num_kv_heads: int, tmp_path: Path) -> None:
    graph = _left_to_kernels(_model(_ROTARY_INPUTS, _rotary_heads(num_heads, num_kv_heads)), tmp_path)
    with pytest.raises(ProviderError, match="RotaryHeads: its numbers of heads are out of range"):
        open_session(graph, 1, native_library())


@pytest.mark.parametrize("width", [0, 63, 96])
def test_columns_that_are_no_heads_are_refused_when_they_come(width: int, tmp_path: Path) -> None:
    operator = Operator(tmp_path, _ROTARY_INPUTS, _rotary_heads(2, 1))
    with pytest.raises(Fail, match="RotaryHeads: "):
        operator.run_native(_rotary_feed(2, width))


def test_masks_that_do_not_fit_are_refused_when_they_come(tmp_path: Path) -> None:
    attention = _attention(tmp_path, 16, 2, 2, False)
    feed = _attention_feed(np.random.default_rng(0), 5, 3, 2, 2, 16)
    for mask in (feed["mask"][:, :, :2], feed["mask"][..., :0], np.zeros((1, 1, 3, 99), np.float32)):
        with pytest.raises(Fail, match="attention: sizes"):
            attention.run_native(feed | {"mask": mask})


def test_tensors_without_elements_are_no_work(tmp_path: Path) -> None:
    operator = Operator(tmp_path, {"rows": ["N", 2]}, lambda editor, values: [swiglu(editor, values[0])])
    assert operator.run_native({"rows": np.zeros((0, 2), np.float32)})[0].shape == (0, 1)
    operator = Operator(tmp_path, _ROTARY_INPUTS, _rotary_heads(2, 1))
    shapes = [part.shape for part in operator.run_native(_rotary_feed(0, 64))]
    assert shapes == [(1, 2, 0, 16), (1, 1, 0, 16), (1, 1, 0, 16)]


def _rotary_heads(num_heads: int, num_kv_heads: int) -> Build:
    return lambda editor, values: rotary_heads(editor, values[0], values[1], values[2], num_heads, num_kv_heads)


def _rotary_feed(num_nodes: int, width: int) -> dict[str, npt.NDArray[np.generic]]:
    return {
        name: np.zeros((1, num_nodes, size), np.float32)
        for name, size in zip(_ROTARY_INPUTS, (width, 8, 8), strict=True)
    }


def _attention(folder: Path, head_size: int, num_kv_heads: int, group_size: int, is_quantized: bool) -> Operator:
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
    }
    attributes = {
        "scale": 1.1 * head_size**-0.5,  # no power of two, by which any order of factors gives the same bits
        "softcap": 0.0,
        "num_heads": num_heads,
        "kv_heads": num_kv_heads,
        "head_dim": head_size,
    }
    return Operator(
        folder,
        inputs,
        lambda editor, values: editor.op_multi(TREE_ATTENTION, values, 3, attributes, domain=MARKER_DOMAIN),
        is_quantized,
    )


def _attention_feed(
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
