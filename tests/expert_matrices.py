"""Random matrices of experts in each way that they are stored, and exact products by them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.blocks.blocks import unpack_blocks
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.block_linear import StoredBlocks
from reader_edge_export.operators.definitions import Int8Matrix
from reader_edge_export.operators.experts import block_experts, gguf_experts, int8_experts, plain_experts
from reader_edge_export.operators.hadamard_linear import BlockMatrix
from reader_edge_export.quantize.hadamard import block_size, hadamard
from reader_edge_runtime.arrays import Float32Array
from tests.gguf_files import random_rows

Product = Callable[[GraphEditor, ir.Value, ir.Value], ir.Value]

FORMS = ("plain", "int8", "int8-a16", "int4", *BLOCK_TYPES)


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """meant: weight (X, J, K) in float64; product: of a graph, with the matrices in it as constants."""

    meant: Callable[[], npt.NDArray[np.float64]]
    product: Product

    def expected(self, rows: Float32Array, experts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """rows (R, K), each times its expert's matrix: (R, J)."""
        products = self.meant()[experts] @ rows.astype(np.float64)[:, :, None]
        return np.asarray(products[..., 0])


def random_experts(storage: str, num_experts: int, num_outputs: int, num_inputs: int) -> ExpertMatrices:
    """Matrices in one of FORMS; of a block type of GGUF files num_inputs is a multiple of 256."""
    rng = np.random.default_rng(num_inputs)
    sizes = num_experts, num_outputs, num_inputs
    if storage == "plain":
        return _plain(rng, sizes)
    if storage in ("int8", "int8-a16"):
        return _int8(rng, sizes, 2 if storage == "int8-a16" else 1)
    return _int4(rng, sizes) if storage == "int4" else _kept(rng, storage, sizes)


def _plain(rng: np.random.Generator, sizes: tuple[int, int, int]) -> ExpertMatrices:
    weight = rng.standard_normal(sizes, np.float32)

    def product(editor: GraphEditor, rows: ir.Value, experts: ir.Value) -> ir.Value:
        return plain_experts(editor, rows, experts, editor.constant(weight, "weight"))

    return ExpertMatrices(lambda: weight.astype(np.float64), product)


def _int8(rng: np.random.Generator, sizes: tuple[int, int, int], num_planes: int) -> ExpertMatrices:
    values = rng.integers(-127, 128, sizes).astype(np.int8)
    scales, rotation = rng.random(sizes[:2], np.float32), _rotation(rng, sizes)

    def product(editor: GraphEditor, rows: ir.Value, experts: ir.Value) -> ir.Value:
        constants = [editor.constant(array, "experts") for array in (values, scales, *rotation)]
        return int8_experts(editor, rows, experts, Int8Matrix(*constants), num_planes)

    return ExpertMatrices(lambda: _meant(values, scales, rotation), product)


def _int4(rng: np.random.Generator, sizes: tuple[int, int, int]) -> ExpertMatrices:
    num_blocks = -(-sizes[2] // 32)
    values = rng.integers(0, 256, (*sizes[:2], num_blocks, 16)).astype(np.uint8)
    block_scales = rng.integers(-15, 16, (*sizes[:2], num_blocks)).astype(np.int8)
    scales, rotation = rng.random(sizes[:2], np.float32), _rotation(rng, sizes)

    def product(editor: GraphEditor, rows: ir.Value, experts: ir.Value) -> ir.Value:
        constants = [editor.constant(array, "experts") for array in (values, block_scales, scales, *rotation)]
        return block_experts(editor, rows, experts, BlockMatrix(*constants))

    def meant() -> npt.NDArray[np.float64]:
        codes = np.stack([values & 15, values >> 4], -1).reshape(*values.shape[:3], 32).astype(np.int64) - 8
        steps = (codes * block_scales[..., None]).reshape(*sizes[:2], -1)[..., : sizes[2]]
        return _meant(steps, scales, rotation)

    return ExpertMatrices(meant, product)


def _kept(rng: np.random.Generator, name: str, sizes: tuple[int, int, int]) -> ExpertMatrices:
    kind = gguf.GGMLQuantizationType[name]
    files = [random_rows(kind, sizes[1:], rng) for _ in range(sizes[0])]
    blocks = [unpack_blocks(BLOCK_TYPES[name], rows) for rows in files]
    arrays = {part: np.stack([each.arrays[part] for each in blocks]) for part in blocks[0].arrays}

    def product(editor: GraphEditor, rows: ir.Value, experts: ir.Value) -> ir.Value:
        values = {part: editor.constant(array, part) for part, array in arrays.items()}
        return gguf_experts(editor, rows, experts, StoredBlocks(BLOCK_TYPES[name], sizes[1:], values))

    return ExpertMatrices(lambda: np.stack([gguf.dequantize(rows, kind) for rows in files]).astype(np.float64), product)


def _rotation(rng: np.random.Generator, sizes: tuple[int, int, int]) -> tuple[Float32Array, Float32Array]:
    smoothing = rng.uniform(0.5, 2, (sizes[0], sizes[2])).astype(np.float32)
    return smoothing, hadamard(block_size(sizes[2])).astype(np.float32)


def _meant(
    steps: npt.NDArray[np.generic], scales: Float32Array, rotation: Sequence[Float32Array]
) -> npt.NDArray[np.float64]:
    """What rows meet that are not yet smoothed and rotated."""
    smoothing, matrix = (each.astype(np.float64) for each in rotation)
    blocks = (steps.astype(np.float64) * scales[..., None]).reshape(*steps.shape[:2], -1, len(matrix))
    return np.asarray((blocks @ matrix.T).reshape(steps.shape) * smoothing[:, None])
