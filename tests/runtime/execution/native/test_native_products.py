"""Native products of rows with matrices of 8 and 4 bits: the bits of their definitions, whatever size and width."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.onnx_graph.shared_constants import MAX_BLOCK_SCALE
from reader_edge_export.operators.definitions import Int8Matrix, hadamard_row_linear, hadamard_rows
from reader_edge_export.operators.hadamard_linear import MAX_INPUTS, BlockMatrix, hadamard_block_linear
from reader_edge_export.quantize.hadamard import block_size, hadamard
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import open_session
from tests.runtime.execution.native_operator import Operator, left_to_kernels, needs_kernels, operator_model

Outputs = Sequence[ir.Value]


NUM_ROWS = (1, 2, 3, 4, 5, 6, 7, 13, 64, 200)


pytestmark = [needs_kernels, pytest.mark.usefixtures("instructions")]


@pytest.mark.parametrize("num_planes", [1, 2])
@pytest.mark.parametrize(
    ("num_inputs", "num_outputs"),
    [(1, 5), (8, 1), (37, 3), (100, 37), (48, 7), (64, 4), (96, 1152), (576, 40), (896, 130), (1536, 33), (4864, 3)],
)
def test_spread_products_keep_the_bits(num_inputs: int, num_outputs: int, num_planes: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(num_inputs)
    arrays = _matrix(num_inputs, num_outputs, rng)
    bias = rng.standard_normal(num_outputs, np.float32)

    def operator(added: Float32Array | None) -> Operator:
        def build(editor: GraphEditor, values: Sequence[ir.Value]) -> Outputs:
            matrix = Int8Matrix(*(editor.constant(array, "constant") for array in arrays))
            bias = None if added is None else editor.constant(added, "bias")
            return [hadamard_row_linear(editor, values[0], matrix, bias, num_planes)]

        folder = tmp_path / ("plain" if added is None else "biased")
        folder.mkdir()
        return Operator(folder, {"rows": ("B", "N", num_inputs)}, build)

    # Apart, since no matrix may be of two products (`_Graph.multiply` of heads).
    plain, with_bias = operator(None), operator(bias)
    for num_rows in NUM_ROWS:
        rows = _rows(num_rows, num_inputs, rng)
        (product,), (biased,) = plain.check(rows=rows), with_bias.check(rows=rows)
        np.testing.assert_array_equal(biased, bias + product)
        np.testing.assert_array_equal(biased[0, 0], bias)
        expected = _rotation(rows, arrays) @ (arrays[0] * arrays[1][:, None]).astype(np.float64).T
        assert np.abs(product - expected).max() < {1: 0.06, 2: 0.01}[num_planes] * np.abs(expected).max()


@pytest.mark.parametrize("num_inputs", [1, 24, 37, 128, 896, 1536])
def test_rows_spread_alone_keep_the_bits(num_inputs: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(num_inputs)
    arrays = _matrix(num_inputs, 1, rng)

    def build(editor: GraphEditor, values: Sequence[ir.Value]) -> Outputs:
        smoothing, matrix = (editor.constant(array, "constant") for array in arrays[2:])
        return [editor.op("Add", [hadamard_rows(editor, values[0], smoothing, matrix), editor.scalar(0)])]  # one zero

    operator = Operator(tmp_path, {"rows": ("B", "N", num_inputs)}, build)
    for num_rows in NUM_ROWS:
        rows = _rows(num_rows, num_inputs, rng)
        (rotation,) = operator.check(rows=rows)
        block = len(arrays[3])
        steps = block * np.abs(rows * arrays[2]).max(axis=-1, keepdims=True) / 2**22
        assert (np.abs(rotation - _rotation(rows, arrays)) <= 1.1 * block * steps).all()


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(0, 4), (4, 0), (0, 0)])
def test_a_product_of_nothing_is_refused(num_inputs: int, num_outputs: int, has_bias: bool, tmp_path: Path) -> None:
    values, scales = np.ones((num_outputs, num_inputs), np.int8), np.ones(num_outputs, np.float32)
    arrays = values, scales, np.ones(num_inputs, np.float32), hadamard(1)
    _refused(tmp_path, arrays, scales if has_bias else None, "its weight needs two axes")


@pytest.mark.parametrize(
    ("part", "array", "message"),
    [
        (1, np.ones(3, np.float32), "sizes of weight, scales and bias do not fit"),
        (2, np.ones(32, np.float32), "sizes of weight and smoothing do not fit"),
        (2, np.ones((2, 8), np.float32), "its smoothing scales need one axis"),
        (2, np.ones(0, np.float32), "its smoothing scales need one axis"),
        (3, np.ones(16, np.float32), "its matrix needs two axes"),
        (3, np.ones((16, 16), np.float32), "no Hadamard matrix"),
        (3, hadamard(16)[:, :8], "no Hadamard matrix"),
        (3, hadamard(32), "no Hadamard matrix"),
        (3, np.ones((3, 3), np.float32), "no Hadamard matrix"),
        (3, np.ones((0, 0), np.float32), "no Hadamard matrix"),
    ],
)
def test_wrong_constants_are_refused(part: int, array: Float32Array, message: str, tmp_path: Path) -> None:
    arrays: list[npt.NDArray[np.generic]] = [*_matrix(16, 4, np.random.default_rng(0))]
    arrays[part] = array
    _refused(tmp_path, arrays, None, message)


def test_rows_that_do_not_fit_are_refused_when_they_come(tmp_path: Path) -> None:
    arrays = _matrix(16, 4, np.random.default_rng(0))

    def build(editor: GraphEditor, values: Sequence[ir.Value]) -> Outputs:
        constants = [editor.constant(array, "constant") for array in arrays]
        product = hadamard_row_linear(editor, values[0], Int8Matrix(*constants), None, 1)
        return [product, hadamard_rows(editor, values[0], *constants[2:])]

    operator = Operator(tmp_path, {"rows": ("B", "N", "K")}, build)
    with pytest.raises(Fail, match="do not fit"):
        operator.run_native({"rows": np.zeros((1, 2, 17), np.float32)})


def _matrix(
    num_inputs: int, num_outputs: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int8], Float32Array, Float32Array, Float32Array]:
    """Values (J, K), scales (J,), smoothing (K,) and the Hadamard matrix of its blocks."""
    values = rng.integers(-127, 128, (num_outputs, num_inputs)).astype(np.int8)
    smoothing = rng.standard_normal(num_inputs, np.float32)
    return values, rng.random(num_outputs, np.float32), smoothing, hadamard(block_size(num_inputs))


def _rows(num_rows: int, num_inputs: int, rng: np.random.Generator) -> Float32Array:
    """(2, N, K): the first of zeros, the last with one large input, half of them tiny."""
    rows = rng.standard_normal((2, num_rows, num_inputs), np.float32)
    rows[0, 0] = 0
    rows[1, : num_rows // 2] *= np.float32(1e-12)
    rows[1, -1, 0] *= np.float32(1e4)
    return rows


def _rotation(rows: Float32Array, arrays: Sequence[npt.NDArray[np.generic]]) -> npt.NDArray[np.float64]:
    smoothing, matrix = arrays[2].astype(np.float64), arrays[3].astype(np.float64)
    rotation: npt.NDArray[np.float64] = ((rows * smoothing).reshape(-1, len(matrix)) @ matrix).reshape(rows.shape)
    return rotation


def _refused(folder: Path, arrays: Sequence[npt.NDArray[np.generic]], bias: Float32Array | None, message: str) -> None:
    """Loading a product with these constants fails with the message."""

    def build(editor: GraphEditor, values: Sequence[ir.Value]) -> Outputs:
        matrix = Int8Matrix(*(editor.constant(array, "constant") for array in arrays))
        added = None if bias is None else editor.constant(bias, "bias")
        return [hadamard_row_linear(editor, values[0], matrix, added, 1)]

    graph = left_to_kernels(operator_model({"rows": ("B", "N", "K")}, build), folder)
    with pytest.raises(ProviderError, match=message):
        open_session(graph, 1, native_library())


Arrays = Sequence[npt.NDArray[Any]]  # of a BlockMatrix, in its order


BLOCK_NUM_ROWS = (1, 3, 8, 9, 12, 90)  # of two sequences each; 17 rows and more have their weights unpacked first


@pytest.mark.parametrize(
    ("num_inputs", "num_outputs"), [(1, 5), (8, 1), (37, 3), (100, 37), (48, 288), (512, 33), (576, 40), (4864, 3)]
)
def test_products_of_blocks_keep_the_bits(num_inputs: int, num_outputs: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(num_inputs)
    arrays = _blocks(num_inputs, num_outputs, rng)
    bias = rng.standard_normal(num_outputs, np.float32)
    operator = _operator(tmp_path, arrays, bias)
    for num_rows in BLOCK_NUM_ROWS:
        rows = rng.standard_normal((2, num_rows, num_inputs), np.float32)
        rows[0, 0], rows[1, -1, 0] = 0, 1e4
        product, biased = operator.check(rows=rows)
        np.testing.assert_array_equal(biased, bias + product)
        np.testing.assert_array_equal(biased[0, 0], bias)
        expected = _block_rotation(rows, arrays) @ _weight(arrays).T
        assert np.abs(product - expected).max() < 0.06 * np.abs(expected).max()


def test_a_row_has_the_same_bits_among_any_number_of_others(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = _blocks(576, 40, rng)
    operator = _operator(tmp_path, arrays, None)
    rows = rng.standard_normal((1, 64, 576), np.float32)
    alone = [operator.run_native({"rows": rows[:, row : row + 1]})[0][0, 0] for row in range(64)]
    for width in range(1, 65):
        (product,) = operator.run_native({"rows": rows[:, :width]})
        np.testing.assert_array_equal(product[0], alone[:width])


def test_the_largest_sums_keep_the_bits(tmp_path: Path) -> None:
    num_blocks = MAX_INPUTS // 32
    values = np.zeros((2, num_blocks, 16), np.uint8)  # -8 throughout
    block_scales = np.array([[MAX_BLOCK_SCALE] * num_blocks, [-MAX_BLOCK_SCALE] * num_blocks], np.int8)
    num_inputs = num_blocks * 32
    arrays: Arrays = [values, block_scales, np.ones(2, np.float32), np.ones(num_inputs, np.float32), hadamard(1)]
    operator = _operator(tmp_path, arrays, None)
    for num_rows in (1, 20):
        (product,) = operator.check(rows=np.ones((1, num_rows, num_inputs), np.float32))
        expected = np.tile(np.array([-120, 120]) * num_inputs, (num_rows, 1))
        np.testing.assert_allclose(product[0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("part", "array", "message"),
    [
        (3, np.ones(128, np.float32), "its values need outputs, blocks of the inputs"),
        (3, np.ones((2, 32), np.float32), "its smoothing scales need one axis"),
        (4, np.ones((3, 3), np.float32), "no Hadamard matrix"),
        (0, np.ones((4, 2, 15), np.uint8), "16 bytes a block"),
        (0, np.ones((4, 3, 16), np.uint8), "blocks of the inputs"),
        (0, np.ones((0, 2, 16), np.uint8), "its values need outputs"),
        (0, np.ones((4, 32), np.uint8), "16 bytes a block"),
        (1, np.ones((4, 3), np.int8), "sizes of values and scales of blocks do not fit"),
        (1, np.ones((3, 2), np.int8), "sizes of values and scales of blocks do not fit"),
        (1, np.ones(8, np.int8), "sizes of values and scales of blocks do not fit"),
        (2, np.ones(5, np.float32), "sizes of weight, scales and bias do not fit"),
        (5, np.ones(3, np.float32), "sizes of weight, scales and bias do not fit"),
    ],
)
def test_wrong_constants_of_blocks_are_refused(
    part: int, array: npt.NDArray[Any], message: str, tmp_path: Path
) -> None:
    arrays: list[npt.NDArray[Any]] = [*_blocks(64, 4, np.random.default_rng(0)), np.ones(4, np.float32)]
    arrays[part] = array
    _blocks_refused(tmp_path, arrays, message)


@pytest.mark.parametrize(
    ("num_blocks", "scale", "message"), [(2, 16, "beyond 15"), (2, -128, "beyond 15"), (547, 1, "too many inputs")]
)
def test_sums_that_could_overflow_are_refused(num_blocks: int, scale: int, message: str, tmp_path: Path) -> None:
    values, scales = np.zeros((1, num_blocks, 16), np.uint8), np.full((1, num_blocks), scale, np.int8)
    one = np.ones(1, np.float32)
    _blocks_refused(tmp_path, [values, scales, one, np.ones(num_blocks * 32, np.float32), hadamard(1), one], message)


def _blocks(num_inputs: int, num_outputs: int, rng: np.random.Generator) -> Arrays:
    num_blocks = -(-num_inputs // 32)
    smoothing = rng.standard_normal(num_inputs, np.float32)
    values = rng.integers(0, 256, (num_outputs, num_blocks, 16)).astype(np.uint8)
    block_scales = rng.integers(-MAX_BLOCK_SCALE, MAX_BLOCK_SCALE + 1, (num_outputs, num_blocks)).astype(np.int8)
    return [values, block_scales, rng.random(num_outputs, np.float32), smoothing, hadamard(block_size(num_inputs))]


def _operator(folder: Path, arrays: Arrays, bias: Float32Array | None) -> Operator:
    """Rows (B, N, K) times the matrix; with a bias, once more with it added."""

    def build(editor: GraphEditor, values: Sequence[ir.Value]) -> list[ir.Value]:
        blocks = BlockMatrix(*(editor.constant(array, "constant") for array in arrays))
        biases = [None] if bias is None else [None, editor.constant(bias, "bias")]
        return [hadamard_block_linear(editor, values[0], blocks, either) for either in biases]

    return Operator(folder, {"rows": ("B", "N", len(arrays[3]))}, build)


def _weight(arrays: Arrays) -> npt.NDArray[np.float64]:
    """The matrix (J, K) that is stored."""
    values, block_scales, scales, smoothing, _ = arrays
    halves = np.stack([values & 15, values >> 4], axis=-1).reshape(*block_scales.shape, 32).astype(np.float64) - 8
    weight = (halves * block_scales[..., None]).reshape(len(values), -1) * scales[:, None]
    result: npt.NDArray[np.float64] = weight[:, : len(smoothing)]
    return result


def _block_rotation(rows: Float32Array, arrays: Arrays) -> npt.NDArray[np.float64]:
    smoothing, matrix = arrays[3].astype(np.float64), arrays[4].astype(np.float64)
    rotation: npt.NDArray[np.float64] = ((rows * smoothing).reshape(-1, len(matrix)) @ matrix).reshape(rows.shape)
    return rotation


def _blocks_refused(folder: Path, arrays: Sequence[npt.NDArray[Any]], message: str) -> None:
    """Loading a product with these constants, a bias last, fails with the message."""

    def build(editor: GraphEditor, values: Sequence[ir.Value]) -> list[ir.Value]:
        *stored, bias = (editor.constant(array, "constant") for array in arrays)
        return [hadamard_block_linear(editor, values[0], BlockMatrix(*stored), bias)]

    graph = left_to_kernels(operator_model({"rows": ("B", "N", "K")}, build), folder)
    with pytest.raises(ProviderError, match=message):
        open_session(graph, 1, native_library())
