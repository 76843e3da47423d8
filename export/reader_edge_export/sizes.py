"""Fold the arithmetic on sizes that a trace leaves: half of a small model's operators, and none of its work.

Sizes are followed forward through the graph (see `size_rules`); a wrong one would fail the parity checks.
"""

from itertools import zip_longest

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from reader_edge_export.graph_editor import GraphEditor, integer_attribute, weight_of
from reader_edge_export.size_rules import Sizes, output_content, output_sizes

_MAX_CONTENT = 8
_FREE_SIZES = ("B", "N")  # of input_ids, in this order


def fold_sizes(editor: GraphEditor) -> None:
    """Replace sizes that are numbers by constants, read the free ones once, and let reshapes copy them.

    Afterwards every value whose sizes are known carries them as its shape.
    """
    _SizeFolder(editor).run()
    common.CommonSubexpressionEliminationPass()(editor.model)


class _SizeFolder:
    """sizes: of each value. contents: the elements of integer vectors and scalars that hold sizes."""

    def __init__(self, editor: GraphEditor) -> None:
        self._editor = editor
        self._sizes: dict[ir.Value, Sizes] = {}
        self._contents: dict[ir.Value, Sizes] = {}
        self._free: dict[str, ir.Value] = {}
        for value in (*editor.graph.inputs, *editor.graph.initializers.values()):
            self._note(value)

    def run(self) -> None:
        for node in list(self._editor.graph):
            self._infer(node)
            if node.op_type == "Reshape":
                self._copy_sizes(node)
            self._replace_content(node)
        for value, sizes in self._sizes.items():
            if not value.is_graph_output():
                value.shape = ir.Shape(sizes)

    def _note(self, value: ir.Value) -> None:
        if value.shape is not None:
            self._sizes[value] = tuple(size if isinstance(size, int) else size.value for size in value.shape)
        content = weight_of(value)
        if content is not None and content.dtype == np.int64 and content.size <= _MAX_CONTENT:
            self._contents[value] = tuple(content.reshape(-1).tolist())

    def _infer(self, node: ir.Node) -> None:
        output = node.outputs[0]
        if node.op_type == "Split":
            self._infer_split(node)
        elif node.inputs:
            known = [self._sizes.get(value) if value is not None else None for value in node.inputs]
            sizes = output_sizes(node, known, self._contents)
            content = known[0] if node.op_type == "Shape" else output_content(node, self._contents)
            if sizes is not None:
                self._sizes[output] = sizes
            if content is not None and len(content) <= _MAX_CONTENT:
                self._contents[output] = content

    def _infer_split(self, node: ir.Node) -> None:
        data = self._sizes.get(node.inputs[0]) if node.inputs[0] is not None else None
        widths = self._contents.get(node.inputs[1]) if node.inputs[1] is not None else None
        if data is None or widths is None:
            return
        axis = integer_attribute(node, "axis", 0) % len(data)
        for output, width in zip(node.outputs, widths, strict=True):
            self._sizes[output] = (*data[:axis], width, *data[axis + 1 :])

    def _replace_content(self, node: ir.Node) -> None:
        """A constant in the place of known numbers; the one shared reader in the place of a free size."""
        output = node.outputs[0]
        content, sizes = self._contents.get(output), self._sizes.get(output)
        if content is None or sizes is None or len(sizes) > 1 or output.is_graph_output():
            return
        numbers = [size for size in content if isinstance(size, int)]
        if len(numbers) == len(content):
            new = self._editor.constant(np.array(numbers if sizes else numbers[0], np.int64), "size")
        elif sizes == () and content[0] in _FREE_SIZES:
            new = self._free_size(str(content[0]))
        else:
            return
        self._sizes[new], self._contents[new] = sizes, content
        output.replace_all_uses_with(new)

    def _free_size(self, name: str) -> ir.Value:
        if name not in self._free:
            editor = self._editor
            input_ids = next(value for value in editor.graph.inputs if value.name == "input_ids")
            size = editor.size_of(input_ids, _FREE_SIZES.index(name))
            self._free[name] = editor.op("Squeeze", [size, editor.int64s(0)], dtype=ir.DataType.INT64)
            editor.insert_before(next(iter(editor.graph)))
        return self._free[name]

    def _copy_sizes(self, node: ir.Node) -> None:
        """Let a reshape copy the free sizes that stay at their place, instead of being told them."""
        data, shape = node.inputs[0], node.inputs[1]
        before = self._sizes.get(data) if data is not None else None
        wanted = self._sizes.get(node.outputs[0])
        if before is None or wanted is None or weight_of(shape) is not None:
            return
        copied = [0 if size == old and isinstance(size, str) else size for size, old in zip_longest(wanted, before)]
        copied = copied[: len(wanted)]
        if copied.count(None) == 1:
            copied[copied.index(None)] = -1
        numbers = [size for size in copied if isinstance(size, int)]
        if len(numbers) == len(wanted):
            node.replace_input_with(1, self._editor.int64s(*numbers))
