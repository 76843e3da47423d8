"""Products by matrices that keep their GGUF file's own block formats; others become int8."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from reader_edge_export.blocks.blocks import Blocks
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.block_linear import StoredBlocks, gguf_linear, store_blocks
from reader_edge_export.operators.definitions import Int8Matrix
from reader_edge_export.quantize.int8 import Int8Products
from reader_edge_export.quantize.linear import MergedProduct
from reader_edge_export.sources.source_model import SourceModel, is_product
from reader_edge_export.sources.weights import Matrix


class GgufProducts:
    """Stores matrices as their source does and multiplies by them; int8: for those that cannot stay so.

    keeps: whether any stay.
    """

    def __init__(self, editor: GraphEditor, keeps: bool, int8: Int8Products) -> None:
        self._editor = editor
        self._keeps = keeps
        self._int8 = int8

    def kind_of(self, matrix: Matrix) -> str | None:
        """The name of a matrix's type, None for int8: products of one kind can be one."""
        block_type = matrix.block_type if self._keeps else None
        return None if block_type is None else block_type.name

    def multiply_stored(self, product: MergedProduct) -> tuple[ir.Value, StoredBlocks | Int8Matrix]:
        """The product's output (..., J), and its matrix as it is stored: as it is, or as int8."""
        if self.kind_of(product.parts[0]) is None:
            return self._int8.multiply_stored(product)
        blocks = Blocks.joined([part.blocks() for part in product.parts])
        matrix = store_blocks(self._editor, blocks, product.name)
        output = gguf_linear(self._editor, product.rows, matrix)
        return output if product.bias is None else self._editor.op("Add", [output, product.bias]), matrix

    def store_gguf(self, matrix: Matrix, name: str) -> StoredBlocks | None:
        """A matrix as initializers, None where it does not stay."""
        if self.kind_of(matrix) is None:
            return None
        return store_blocks(self._editor, matrix.blocks(), name)


@dataclass(frozen=True, slots=True)
class StoredTypes:
    """num_kept, num_others: matrices by the names of their types. needs_calibration: whether products are among the
    others, which become int8."""

    num_kept: Mapping[str, int] = field(default_factory=dict)
    num_others: Mapping[str, int] = field(default_factory=dict)
    needs_calibration: bool = True

    @classmethod
    def of(cls, model: SourceModel) -> "StoredTypes":
        """Of a model that has any: its products, and its embeddings."""
        weights = model.weights
        products = {model.names[id(module.weight)] for module in filter(is_product, model.skeleton.modules())}
        products |= {each.name for experts in model.experts.values() for each in (experts.up, experts.down)}
        names = products | model.table_names
        kept = Counter(weights.stored_type(name) for name in names if weights.block_type(name) is not None)
        others = Counter(weights.stored_type(name) for name in names if weights.block_type(name) is None)
        return cls(dict(kept), dict(others), any(weights.block_type(name) is None for name in products))
