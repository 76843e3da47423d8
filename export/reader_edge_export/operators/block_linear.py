"""The operators Q4_0Linear to IQ4_XSLinear: rows times a matrix in the blocks of a GGUF file, which stay as they are.

Rows are rounded to int8 in blocks too, as llama.cpp does it, since a matrix that stays cannot take a spreading back: a
scale for a whole row costs 0.035 nats on SmolLM2-135M. A block's sum is an integer, exact in
any order; the blocks' scales are numbers in fp16, or powers of two as far apart, which no common unit holds, so blocks
are combined in fp32. ONNX Runtime's MatMulNBits has an order for that, the native kernels another: each gives a row the
same bits at every width, but the last bits of one are not the other's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from reader_edge_export.blocks.block_type import BlockType
from reader_edge_export.blocks.blocks import Blocks
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.block_definitions import lookup_definitions, product_definitions
from reader_edge_export.operators.definitions import OPERATOR_DOMAIN, define


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """A matrix (J, K) in a graph; values: by the names of its type's `parts`."""

    block_type: BlockType
    shape: tuple[int, int]
    values: Mapping[str, ir.Value]


def store_blocks(editor: GraphEditor, blocks: Blocks, name: str) -> StoredBlocks:
    """A matrix as initializers."""
    kind = blocks.block_type.name.lower()
    values = {part: editor.constant(array, f"{name}.{kind}.{part}") for part, array in blocks.arrays.items()}
    return StoredBlocks(blocks.block_type, blocks.shape, values)


def gguf_linear(editor: GraphEditor, rows: ir.Value, matrix: StoredBlocks) -> ir.Value:
    """rows (..., K), rounded in blocks, times the matrix's transpose -> (..., J)."""
    block_type = matrix.block_type
    define(editor, *product_definitions(block_type))
    num_outputs, num_inputs = matrix.shape
    sizes = {"K": num_inputs, "N": num_outputs}
    return editor.op(f"{block_type.name}Linear", [rows, *matrix.values.values()], sizes, domain=OPERATOR_DOMAIN)


def looked_up(editor: GraphEditor, matrix: StoredBlocks, indices: ir.Value) -> ir.Value:
    """Rows (B, N, K) of a matrix, those at `indices` (B, N), with the values that its file gives them."""
    block_type = matrix.block_type
    define(editor, *lookup_definitions(block_type))
    rows = {
        part: editor.op("Gather", [value, indices], {"axis": 0}, dtype=value.dtype or ir.DataType.FLOAT)
        for part, value in matrix.values.items()
    }
    integers = editor.cast(_levels(editor, block_type, rows), ir.DataType.FLOAT)
    if block_type.zero:
        integers = editor.op("Sub", [integers, editor.scalar(block_type.zero)])
    last = editor.int64s(-1)
    weight = editor.op("Mul", [integers, editor.op("Unsqueeze", [_numbers(editor, rows, "scale"), last])])
    if block_type.has_minima:
        weight = editor.op("Add", [weight, editor.op("Unsqueeze", [_numbers(editor, rows, "minimum"), last])])
    return editor.op("Reshape", [weight, editor.int64s(0, 0, matrix.shape[1])])


def _levels(editor: GraphEditor, block_type: BlockType, parts: Mapping[str, ir.Value]) -> ir.Value:
    """(..., blocks, n) of arrays (..., blocks, bytes)."""
    if block_type.bits == 8:
        return parts["qs"]
    if block_type.levels:
        operator = f"{block_type.name}Levels"
        return editor.op(operator, [parts["qs"]], domain=OPERATOR_DOMAIN, dtype=ir.DataType.UINT8)
    inputs = [parts[name] for name in ("qs", "qh") if name in parts]
    return editor.op(f"Codes{block_type.bits}", inputs, domain=OPERATOR_DOMAIN, dtype=ir.DataType.UINT8)


def _numbers(editor: GraphEditor, parts: Mapping[str, ir.Value], name: str) -> ir.Value:
    """Scales or minima (..., blocks) in fp32."""
    if f"{name}_exponents" in parts:
        return editor.op("PowersOfTwo", [parts[f"{name}_exponents"]], domain=OPERATOR_DOMAIN)
    numbers, codes = parts[f"{name}_numbers"], parts.get(f"{name}_codes")
    if codes is None:
        return editor.cast(numbers, ir.DataType.FLOAT)
    return editor.op("SharedNumbers", [numbers, codes], domain=OPERATOR_DOMAIN)
