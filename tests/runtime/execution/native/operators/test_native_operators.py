"""Native kernels one operator at a time: the bits of its definition, at odd sizes and with extreme numbers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from reader_edge_export.operators.definitions import rotary_heads, swiglu
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import open_session
from tests.runtime.execution.native_operator import Build, Operator, left_to_kernels, needs_kernels, operator_model

_MAGNITUDES = [0.0, 1e-45, 1e-30, 1, 18, 87, 88.7, 88.8, 104, 1e4, float(np.finfo(np.float32).max), np.inf]
EXTREMES = np.outer(_MAGNITUDES, [1, -1]).astype(np.float32).ravel()
_ROTARY_INPUTS: dict[str, Sequence[int | str]] = {name: ("B", "N", name) for name in ("qkv", "cosines", "sines")}

pytestmark = [needs_kernels, pytest.mark.usefixtures("instructions")]


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


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads"), [(2**63 - 1, 1), (1, 2**63 - 1), (2**63 - 2, 2**62), (2**62, 2**62), (0, 1), (1, -1)]
)
def test_numbers_of_heads_out_of_range_are_refused(num_heads: int, num_kv_heads: int, tmp_path: Path) -> None:
    graph = left_to_kernels(operator_model(_ROTARY_INPUTS, _rotary_heads(num_heads, num_kv_heads)), tmp_path)
    with pytest.raises(ProviderError, match="RotaryHeads: its numbers of heads are out of range"):
        open_session(graph, 1, native_library())


@pytest.mark.parametrize("width", [0, 63, 96])
def test_columns_that_are_no_heads_are_refused_when_they_come(width: int, tmp_path: Path) -> None:
    operator = Operator(tmp_path, _ROTARY_INPUTS, _rotary_heads(2, 1))
    with pytest.raises(Fail, match="RotaryHeads: "):
        operator.run_native(_rotary_feed(2, width))


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
