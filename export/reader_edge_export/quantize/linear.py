"""Find the products with constant weights and hand them on, those with the same input together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from reader_edge_export.graph_editor import GraphEditor, weight_of

Float32Array = npt.NDArray[np.float32]

# Stores a matrix and multiplies by it: rows (..., K), weight (K, J), bias (J,) or None, name -> (..., J)
Multiply = Callable[[ir.Value, Float32Array, ir.Value | None, str], ir.Value]


@dataclass(frozen=True, slots=True)
class Product:
    """A MatMul or Gemm node: its input rows (..., K), its weight (K, J) and its bias (J,), if it has one.

    last: the node whose output is the whole, bias included.
    """

    node: ir.Node
    last: ir.Node
    rows: ir.Value
    weight: Float32Array
    bias: Float32Array | None


def replace_products(editor: GraphEditor, multiply: Multiply) -> None:
    """Give every product with a constant weight the stored form; products of the same rows become one, then split."""
    for group in _grouped(editor.graph):
        outputs = _multiply_together(editor, multiply, group)
        for product, output in zip(group, outputs, strict=True):
            editor.replace(product.last, [output])


def _multiply_together(editor: GraphEditor, multiply: Multiply, group: Sequence[Product]) -> Sequence[ir.Value]:
    first = group[0]
    weight = np.concatenate([product.weight for product in group], axis=1)
    output = multiply(first.rows, weight, _bias_of(editor, group), first.node.name or "product")
    if first.rows.shape is not None:
        output.shape = ir.Shape([*first.rows.shape[:-1], weight.shape[1]])
    outputs = [output]
    if len(group) > 1:
        widths = editor.int64s(*[product.weight.shape[1] for product in group])
        outputs = list(editor.op_multi("Split", [output, widths], len(group), {"axis": -1}))
    editor.insert_before(first.node)
    return outputs


def _bias_of(editor: GraphEditor, group: Sequence[Product]) -> ir.Value | None:
    """The biases (J,) of a group side by side, zeros where only others have one."""
    if all(product.bias is None for product in group):
        return None
    biases = [
        np.zeros(product.weight.shape[1], np.float32) if product.bias is None else product.bias for product in group
    ]
    return editor.constant(np.concatenate(biases), f"{group[0].node.name or 'product'}.bias")


def _grouped(graph: ir.Graph) -> list[list[Product]]:
    groups: dict[ir.Value, list[Product]] = {}
    for node in graph:
        product = _product(node)
        if product is not None:
            groups.setdefault(product.rows, []).append(product)
    return list(groups.values())


def _product(node: ir.Node) -> Product | None:
    if node.op_type not in ("MatMul", "Gemm") or node.inputs[0] is None:
        return None
    weight = weight_of(node.inputs[1])
    if weight is None or weight.ndim != 2 or weight.dtype != np.float32:
        return None
    if node.op_type == "Gemm" and node.attributes.get_int("transB"):
        weight = weight.T
    last, bias = _with_bias(node, weight.shape[1])
    return Product(node, last, node.inputs[0], weight.astype(np.float32, copy=False), bias)


def _with_bias(node: ir.Node, width: int) -> tuple[ir.Node, Float32Array | None]:
    """The product's bias, its own or that of the only node to read it, and where it is added."""
    bias = weight_of(node.inputs[2]) if len(node.inputs) > 2 else None
    if bias is not None:
        return node, bias.astype(np.float32, copy=False).reshape(-1)
    uses = list(node.outputs[0].uses())
    added = uses[0].node if len(uses) == 1 and uses[0].node.op_type == "Add" else node
    for side in added.inputs if added is not node else ():
        bias = weight_of(side)
        if bias is not None and bias.shape == (width,):
            return added, bias.astype(np.float32, copy=False)
    return node, None
