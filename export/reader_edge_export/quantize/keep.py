"""Matrices that stay in the blocks that their file has them in, and products by them; others become int8."""

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from reader_edge_export.block_types import Blocks
from reader_edge_export.gguf_linear import StoredBlocks, gguf_linear, store_blocks
from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.kept_weights import KeptWeights
from reader_edge_export.operators import Int8Matrix
from reader_edge_export.quantize.int8 import Int8Products
from reader_edge_export.quantize.linear import MergedProduct

Float32Array = npt.NDArray[np.float32]


class KeptProducts:
    """Stores matrices as they are and multiplies by them; int8: for those that are not among `kept`."""

    def __init__(self, editor: GraphEditor, kept: KeptWeights, int8: Int8Products) -> None:
        self._editor = editor
        self._kept = kept
        self._int8 = int8

    def kind_of(self, weight: Float32Array) -> str | None:
        """The name of a matrix's (K, J) type, None for int8: products of one kind can be one."""
        block_type = self._kept.type_of(weight)
        return None if block_type is None else block_type.name

    def multiply(self, product: MergedProduct) -> ir.Value:
        """The product's output (..., J)."""
        return self.multiply_stored(product)[0]

    def multiply_stored(self, product: MergedProduct) -> tuple[ir.Value, StoredBlocks | Int8Matrix]:
        """The product's output (..., J), and its matrix as it is stored: as it is, or as int8."""
        if self.kind_of(product.parts[0]) is None:
            return self._int8.multiply_stored(product)
        blocks = Blocks.joined([self._kept.blocks_of(part) for part in product.parts])
        matrix = store_blocks(self._editor, blocks, product.name)
        output = gguf_linear(self._editor, product.rows, matrix)
        return output if product.bias is None else self._editor.op("Add", [output, product.bias]), matrix

    def store_kept(self, weight: Float32Array, name: str) -> StoredBlocks | None:
        """A matrix (K, J) as initializers, None where it does not stay."""
        if self.kind_of(weight) is None:
            return None
        return store_blocks(self._editor, self._kept.blocks_of(weight), name)
