"""The operators LowRankRows and LowRankRows16: what adapters add to products' outputs, for sequences that have one.

Only native kernels have them. Standard products will not do: a row of ONNX Runtime's MatMul by 16 columns has other
bits beside other rows.
"""

from collections.abc import Sequence
from itertools import accumulate

import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.definitions import OPERATOR_DOMAIN
from reader_edge_export.sources.weights import Matrix
from reader_edge_runtime.package.package_parts import LowRankPart, LowRankProduct


class AdaptedProducts:
    """Lets adapters into the products of a graph, and notes which they are.

    products: as of `Manifest.adapted_products`.
    """

    def __init__(self, precision: str) -> None:
        """precision: of the package. Factors are in fp32 beside weights in fp32, else in fp16."""
        self._is_half = precision != "fp32"
        self.products: list[LowRankProduct] = []
        self._nodes: list[ir.Node] = []

    def add(self, editor: GraphEditor, rows: ir.Value, outputs: ir.Value, weights: Sequence[Matrix]) -> ir.Value:
        """Rows (..., K) and their outputs (..., J) -> the outputs with those of adapters.

        weights: (K, J), as many as are side by side; where a small error would do much harm they take no adapters.
        """
        if weights[0].is_sensitive:
            return outputs
        sizes = [weight.shape[1] for weight in weights]
        parts = (LowRankPart(weight.name.removesuffix(".weight"), weight.shape[1]) for weight in weights)
        self.products.append(LowRankProduct(weights[0].shape[0], tuple(parts)))
        if rows.shape is not None:
            outputs.shape = ir.Shape([*rows.shape[:-1], sum(sizes)])
        inputs = [rows, outputs, *self._inputs(editor), editor.int64s(*sizes)]
        adapted = editor.op(
            "LowRankRows16" if self._is_half else "LowRankRows", inputs, {"start": 0, "size": 0}, domain=OPERATOR_DOMAIN
        )
        adapted.shape = outputs.shape
        producer = adapted.producer()
        assert producer is not None
        self._nodes.append(producer)
        return adapted

    def place(self) -> None:
        """Tell all operators where a table has their factors, once none is to come."""
        ends = list(accumulate((product.rank_size for product in self.products), initial=0))
        for node, start in zip(self._nodes, ends, strict=False):
            node.attributes["start"] = ir.AttrInt64("start", start)
            node.attributes["size"] = ir.AttrInt64("size", ends[-1])

    def _inputs(self, editor: GraphEditor) -> list[ir.Value]:
        """The graph's inputs for adapters, made with the first product."""
        if not self._nodes:
            for name, sizes, dtype in (
                ("adapter_ids", ("B",), ir.DataType.INT64),
                ("adapter_table", ("A", "T"), ir.DataType.FLOAT16 if self._is_half else ir.DataType.FLOAT),
            ):
                editor.graph.inputs.append(ir.Value(name=name, shape=ir.Shape(sizes), type=ir.TensorType(dtype)))
        return [editor.input("adapter_ids"), editor.input("adapter_table")]
