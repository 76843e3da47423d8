"""Products by matrices in the blocks of GGUF files: a row's bits are the same at every width, by the definition and by
the native kernel, each for itself; lookups have the values of the file."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort
import pytest

from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.blocks.blocks import Blocks, unpack_blocks
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.block_linear import gguf_linear, looked_up, store_blocks
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import open_session
from reader_edge_runtime.machine.processor import has_saturating_sums
from tests.gguf_files import random_rows
from tests.runtime.execution.native_operator import left_to_kernels, needs_kernels, operator_model

pytestmark = pytest.mark.usefixtures("two_cores")


WIDTHS = range(1, 65)


# Of the sum of the products' magnitudes, each weight as large as its block's largest, since definitions shift levels:
# fp32 rounds by 6e-8, and up to 80 blocks are added.
CLOSENESS = 2e-6
_DIGESTS = {
    "Q4_0": "5a10c08a2b1a",
    "Q4_1": "983cbf83d6d0",
    "Q5_0": "af04194218c5",
    "Q5_1": "3107537d1bd9",
    "Q8_0": "46dddd0ba3e6",
    "Q4_K": "49ce1a526366",
    "Q5_K": "9f503dd095e3",
    "Q6_K": "9bf8e3110679",
    "MXFP4": "295a30170dc5",
    "IQ4_NL": "54a10a246041",
    "IQ4_XS": "0feae5ba7f15",
}


class Product:
    """Rows (B, N, K) times a random matrix, by the definition or by the native kernel."""

    def __init__(self, folder: Path, name: str, num_inputs: int, num_outputs: int, is_native: bool) -> None:
        rows = random_rows(
            gguf.GGMLQuantizationType[name], (num_outputs, num_inputs), np.random.default_rng(num_inputs)
        )
        self.blocks = unpack_blocks(BLOCK_TYPES[name], rows)
        self.weight = self.blocks.dequantized(slice(None)).astype(np.float64)
        self._session = _session(folder, self.blocks, num_inputs, is_native)

    def run(self, rows: Float32Array) -> Float32Array:
        output: Float32Array = self._session.run(None, {"rows": rows})[0]
        return output

    def rounded(self, rows: Float32Array) -> npt.NDArray[np.float64]:
        """Rows as they are multiplied."""
        blocks = rows.reshape(*rows.shape[:-1], -1, self.blocks.block_type.num_inputs)
        top = np.maximum(np.abs(blocks).max(axis=-1, keepdims=True), np.float32(1e-30))
        steps = np.rint(blocks * (np.float32(127) / top))
        rounded: npt.NDArray[np.float64] = (steps * (top / np.float32(127))).astype(np.float64)
        return rounded.reshape(rows.shape)

    def strays(self, rows: Float32Array, output: Float32Array) -> float:
        """The largest difference from exact sums, over the sum of magnitudes."""
        rounded = self.rounded(rows)
        num_inputs = self.blocks.block_type.num_inputs
        blocks = np.abs(self.weight).reshape(len(self.weight), -1, num_inputs)
        magnitudes = np.abs(rounded) @ np.repeat(blocks.max(axis=-1), num_inputs, axis=-1).T + 1e-30
        return float((np.abs(output - rounded @ self.weight.T) / magnitudes).max())


def _session(folder: Path, blocks: Blocks, num_inputs: int, is_native: bool) -> ort.InferenceSession:
    model = _model(blocks, num_inputs)
    if is_native:
        return open_session(left_to_kernels(model, folder), 2, native_library())
    ir.save(model, folder / "pure.onnx")
    return open_session(folder / "pure.onnx", 2)


def _model(blocks: Blocks, num_inputs: int | str) -> ir.Model:
    def build(editor: GraphEditor, values: Sequence[ir.Value]) -> list[ir.Value]:
        return [gguf_linear(editor, values[0], store_blocks(editor, blocks, "matrix"))]

    return operator_model({"rows": ("B", "N", num_inputs)}, build)


FORMS = [pytest.param(False, id="definition"), pytest.param(True, id="native", marks=needs_kernels)]
needs_equal_rows = pytest.mark.skipif(
    has_saturating_sums(),
    reason="ONNX Runtime's own products of blocks sum one row in another order with AVX2 alone; the probe finds it "
    "(tests/export/quantize/test_gguf_products.py)",
)
EQUAL_FORMS = [pytest.param(False, id="definition", marks=needs_equal_rows), FORMS[1]]


@pytest.mark.parametrize("is_native", EQUAL_FORMS)
@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_a_row_has_the_same_bits_at_every_width(name: str, is_native: bool, tmp_path: Path) -> None:
    product = Product(tmp_path, name, 768, 53, is_native)
    rows = np.random.default_rng(0).standard_normal((1, 64, 768), np.float32)
    rows[0, 3], rows[0, 5, 17], rows[0, 7] = 0, 1e4, 1e-38
    alone = np.concatenate([product.run(rows[:, row : row + 1]) for row in range(64)], axis=1)
    for width in WIDTHS:
        np.testing.assert_array_equal(product.run(rows[:, :width]).view(np.uint32), alone[:, :width].view(np.uint32))
        np.testing.assert_array_equal(product.run(rows[:, -width:]), alone[:, -width:])
    assert product.strays(rows, alone) < CLOSENESS
    assert not alone[0, 3].any()


@pytest.mark.parametrize("is_native", FORMS)
@pytest.mark.parametrize(("name", "num_inputs"), [("Q4_1", 32), ("Q8_0", 576), ("Q5_0", 352), ("Q6_K", 256)])
def test_sequences_of_a_batch_do_not_meet(name: str, num_inputs: int, is_native: bool, tmp_path: Path) -> None:
    for num_outputs in (1, 16, 33):
        product = Product(tmp_path, name, num_inputs, num_outputs, is_native)
        rows = np.random.default_rng(1).standard_normal((3, 7, num_inputs), np.float32)
        together = product.run(rows)
        for b in range(3):
            np.testing.assert_array_equal(product.run(rows[b : b + 1, :4]), together[b : b + 1, :4])
        assert product.strays(rows, together) < CLOSENESS


@needs_kernels
@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_native_products_are_close_to_their_definition(name: str, tmp_path: Path) -> None:
    """Both are within CLOSENESS of the same exact sums, of rows rounded alike."""
    native, defined = (Product(tmp_path, name, 2560, 40, is_native) for is_native in (True, False))
    rows = 10 * np.random.default_rng(2).standard_normal((2, 40, 2560), np.float32)
    for product in (native, defined):
        assert product.strays(rows, product.run(rows)) < CLOSENESS


@needs_kernels
@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_native_bits_are_the_same_with_every_instruction_set(name: str, instructions: str, tmp_path: Path) -> None:
    """Blocks are added in fp32: no definition says these bits, but the first instruction set that had kernels."""
    product = Product(tmp_path, name, 768, 37, True)
    rows = np.random.default_rng(4).standard_normal((1, 64, 768), np.float32)
    rows[0, 3], rows[0, 5, 17], rows[0, 7] = 0, 1e4, 1e-38
    together = product.run(rows)
    for width in (1, 2, 3, 5, 13):
        np.testing.assert_array_equal(product.run(rows[:, :width]), together[:, :width])
    assert hashlib.sha256(together.tobytes()).hexdigest()[:12] == _DIGESTS[name], instructions


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_lookups_have_the_bits_of_the_file(name: str, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType[name]
    rows = random_rows(kind, (70, 512), np.random.default_rng(3))

    def build(editor: GraphEditor, values: Sequence[ir.Value]) -> list[ir.Value]:
        ids = editor.cast(values[0], ir.DataType.INT64)
        return [looked_up(editor, store_blocks(editor, unpack_blocks(BLOCK_TYPES[name], rows), "embedding"), ids)]

    ir.save(operator_model({"ids": ("B", "N")}, build), tmp_path / "lookup.onnx")
    ids = np.array([[0, 69, 7], [3, 3, 12]])
    (found,) = open_session(tmp_path / "lookup.onnx", 1).run(None, {"ids": ids.astype(np.float32)})
    expected = gguf.dequantize(rows, kind)[ids]
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@needs_kernels
@pytest.mark.parametrize(
    ("name", "part", "array", "message"),
    [
        ("Q4_0", "qs", np.ones((4, 2, 15), np.uint8), "qs need outputs, blocks"),
        ("Q4_0", "qs", np.ones((0, 2, 16), np.uint8), "qs need outputs, blocks"),
        ("Q4_0", "qs", np.ones((4, 32), np.uint8), "qs need outputs, blocks"),
        ("Q4_0", "scale_numbers", np.ones((4, 9), np.float16), "sizes of its constants do not fit"),
        ("Q4_0", "scale_numbers", np.ones(32, np.float16), "sizes of its constants do not fit"),
        ("Q4_1", "minimum_numbers", np.ones((3, 8), np.float16), "sizes of its constants do not fit"),
        ("Q5_0", "qh", np.ones((4, 8, 3), np.uint8), "sizes of its constants do not fit"),
        ("Q8_0", "qs", np.ones((4, 8, 16), np.uint8), "qs need outputs, blocks"),
        ("Q4_K", "qs", np.ones((4, 9, 16), np.uint8), "number of blocks is out of range"),
        ("Q4_K", "scale_numbers", np.ones((4, 8), np.float16), "sizes of its constants do not fit"),
        ("Q4_K", "minimum_codes", np.ones((4, 1), np.uint8), "sizes of its constants do not fit"),
        ("Q6_K", "scale_codes", np.ones((4, 8), np.int8), "sizes of its constants do not fit"),
    ],
)
def test_wrong_constants_are_refused(
    name: str, part: str, array: npt.NDArray[Any], message: str, tmp_path: Path
) -> None:
    rows = random_rows(gguf.GGMLQuantizationType[name], (4, 256), np.random.default_rng(0))
    blocks = unpack_blocks(BLOCK_TYPES[name], rows)
    arrays: Mapping[str, npt.NDArray[Any]] = {**blocks.arrays, part: array}
    graph = left_to_kernels(_model(Blocks(blocks.block_type, arrays), "K"), tmp_path)
    with pytest.raises(ProviderError, match=f"{name}Linear: .*{message}"):
        open_session(graph, 1, native_library())


@needs_kernels
def test_rows_of_another_length_are_refused_when_they_come(tmp_path: Path) -> None:
    rows = random_rows(gguf.GGMLQuantizationType.Q4_0, (4, 64), np.random.default_rng(0))
    session = open_session(
        left_to_kernels(_model(unpack_blocks(BLOCK_TYPES["Q4_0"], rows), "K"), tmp_path), 1, native_library()
    )
    with pytest.raises(Exception, match="Q4_0Linear: sizes of rows and weight do not fit"):
        session.run(None, {"rows": np.ones((1, 1, 96), np.float32)})
    assert session.run(None, {"rows": np.ones((1, 0, 64), np.float32)})[0].shape == (1, 0, 4)
