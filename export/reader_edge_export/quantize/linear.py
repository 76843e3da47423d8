"""Finds matrix products with constant weights in a graph, and has each quantized by its precision's own function."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import onnx_ir as ir

from reader_edge_export.calibration.calibration import Calibration, InputMoments
from reader_edge_export.onnx_graph.graph_editor import GraphEditor, weight_of
from reader_edge_export.sources.weights import Matrix, matrix_of, read_side_by_side
from reader_edge_runtime.arrays import Float32Array


@dataclass(frozen=True, slots=True)
class MergedProduct:
    """Products of the same rows (..., K): weights (K, J) and biases (J,) side by side, bias None without any.

    calibration: knows what the rows are like; None where nobody does.
    """

    rows: ir.Value
    parts: Sequence[Matrix]
    bias: ir.Value | None
    calibration: Calibration | None
    name: str

    @property
    def weight(self) -> Float32Array:
        """All parts (K, J), read from the source."""
        return read_side_by_side(self.parts)

    @property
    def num_inputs(self) -> int:
        """K"""
        return self.parts[0].shape[0]

    @property
    def num_outputs(self) -> int:
        """J, of all parts."""
        return sum(part.shape[1] for part in self.parts)

    @property
    def parameters(self) -> list[str]:
        """The names of the parts' parameters."""
        return [part.name for part in self.parts]

    @property
    def inputs(self) -> InputMoments:
        """What the rows are like."""
        if self.calibration is None:
            return InputMoments.none(self.num_inputs)
        return self.calibration.inputs_of(self.parts[0].name)


Multiply = Callable[[MergedProduct], ir.Value]  # stores the matrix and multiplies by it: (..., J)
KindOf = Callable[[Matrix], str | None]  # of a weight (K, J); products of other kinds stay apart
Adapt = Callable[[ir.Value, ir.Value, Sequence[Matrix]], ir.Value]  # rows (..., K), outputs (..., J) of such weights


@dataclass(frozen=True, slots=True)
class _LinearProduct:
    """A MatMul node: its input rows (..., K), its weight (K, J) and its bias (J,), if it has one.

    last: the node whose output is the whole, bias included.
    """

    node: ir.Node
    last: ir.Node
    weight: Matrix
    bias: Float32Array | None

    @property
    def rows(self) -> ir.Value:
        """As they are now: another product may have made them, and been replaced."""
        rows = self.node.inputs[0]
        assert rows is not None
        return rows


def not_adapted(rows: ir.Value, outputs: ir.Value, weights: Sequence[Matrix]) -> ir.Value:
    """An `Adapt` of packages that take no adapters."""
    return outputs


def replace_products(
    editor: GraphEditor,
    multiply: Multiply,
    calibration: Calibration | None,
    kind_of: KindOf = lambda weight: None,
    adapt: Adapt = not_adapted,
) -> None:
    """Give every product with a constant weight the stored form.

    Those of the same rows become one, sensitive ones apart, and their outputs are split; where they are of several
    kinds, outputs of each are joined first, so that what reads query, key and value, or gate and up, as one finds
    them so. adapt: is given all outputs of the same rows.
    """
    for group in _grouped(editor.graph):
        kinds: dict[str | None, list[_LinearProduct]] = {}
        for product in group:
            kinds.setdefault(kind_of(product.weight), []).append(product)
        outputs = [multiply(_merged(editor, products, calibration)) for products in kinds.values()]
        joined = outputs[0] if len(outputs) == 1 else editor.op("Concat", outputs, {"axis": -1})
        in_order = [product for products in kinds.values() for product in products]
        joined = adapt(in_order[0].rows, joined, [product.weight for product in in_order])
        for product, output in zip(in_order, _split(editor, in_order, joined), strict=True):
            editor.replace(product.last, [output])


def adapt_products(editor: GraphEditor, adapt: Adapt) -> None:
    """Have adapters in every product with a constant weight, which stays as it is."""
    for product in chain.from_iterable(_grouped(editor.graph)):
        output = product.last.outputs[0]
        readers = list(output.uses())
        adapted = adapt(product.rows, output, [product.weight])
        if adapted is not output:
            editor.insert_after(product.last)
            for reader, index in readers:
                reader.replace_input_with(index, adapted)


def matrix_groups(graph: ir.Graph) -> list[list[Matrix]]:
    """The weights (K, J) of a graph's products, those of the same rows together, without sensitive ones."""
    groups = [[product.weight for product in group] for group in _grouped(graph)]
    return [group for group in groups if not group[0].is_sensitive]


def _merged(editor: GraphEditor, group: Sequence[_LinearProduct], calibration: Calibration | None) -> MergedProduct:
    first = group[0]
    name = first.node.name or "product"
    weights = [product.weight for product in group]
    return MergedProduct(first.rows, weights, _bias_of(editor, group, name), calibration, name)


def _split(editor: GraphEditor, products: Sequence[_LinearProduct], output: ir.Value) -> Sequence[ir.Value]:
    """The outputs (..., J) of products of the same rows, side by side, cut into theirs."""
    sizes, outputs = [product.weight.shape[1] for product in products], [output]
    rows = products[0].rows
    if rows.shape is not None:
        output.shape = ir.Shape([*rows.shape[:-1], sum(sizes)])
    if len(products) > 1:
        outputs = list(editor.op_multi("Split", [output, editor.int64s(*sizes)], len(products), {"axis": -1}))
    editor.insert_before(products[0].node)
    return outputs


def _bias_of(editor: GraphEditor, group: Sequence[_LinearProduct], name: str) -> ir.Value | None:
    """The biases (J,) of a group side by side, zeros where only others have one."""
    if all(product.bias is None for product in group):
        return None
    biases = [
        np.zeros(product.weight.shape[1], np.float32) if product.bias is None else product.bias for product in group
    ]
    return editor.constant(np.concatenate(biases), f"{name}.bias")


def _grouped(graph: ir.Graph) -> list[list[_LinearProduct]]:
    """The products of a graph, those of the same rows together, sensitive ones apart."""
    groups: dict[tuple[ir.Value, bool], list[_LinearProduct]] = {}
    for node in graph:
        product = _product(node)
        if product is not None:
            groups.setdefault((product.rows, product.weight.is_sensitive), []).append(product)
    return list(groups.values())


def _product(node: ir.Node) -> _LinearProduct | None:
    if node.op_type != "MatMul" or node.inputs[0] is None:
        return None
    weight = matrix_of(node.inputs[1])
    if weight is None:
        return None
    last, bias = _with_bias(node, weight.shape[1])
    return _LinearProduct(node, last, weight, bias)


def _with_bias(node: ir.Node, width: int) -> tuple[ir.Node, Float32Array | None]:
    """The product's bias, its own or that of the only node to read it, and where it is added."""
    uses = list(node.outputs[0].uses())
    added = uses[0].node if len(uses) == 1 and uses[0].node.op_type == "Add" else node
    for side in added.inputs if added is not node else ():
        bias = weight_of(side)
        if bias is not None and bias.shape == (width,):
            return added, bias.astype(np.float32, copy=False)
    return node, None
