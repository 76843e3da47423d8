"""Fold the arithmetic on sizes that a trace leaves: half of a small model's operators, and none of its work.

A wrong size would fail the parity checks.
"""

from itertools import zip_longest

import numpy as np
import onnx_ir as ir

from reader_edge_export.graph_editor import GraphEditor, weight_of
from reader_edge_export.size_inference import SizeInference

_FREE_SIZES = ("B", "N")  # of input_ids, in this order


def fold_sizes(editor: GraphEditor) -> None:
    """Replace sizes that are numbers by constants, read the free ones off `input_ids`, and let reshapes copy them.

    Afterwards every value carries its type, and its sizes as far as they are known.
    """
    _SizeFolder(editor).run()


class _SizeFolder:
    def __init__(self, editor: GraphEditor) -> None:
        self._editor = editor
        self._inferred = SizeInference.of(editor.graph)

    def run(self) -> None:
        for node in list(self._editor.graph):
            if node.op_type == "Reshape":
                self._copy_sizes(node)
            self._replace_content(node)
        for value, data_type in self._inferred.data_types.items():
            value.dtype = data_type
        for value, sizes in self._inferred.sizes.items():
            if not value.is_graph_output():
                value.shape = ir.Shape(sizes)

    def _replace_content(self, node: ir.Node) -> None:
        """A constant in the place of known numbers, a size of `input_ids` in the place of a free one."""
        output = node.outputs[0]
        content, sizes = self._inferred.contents.get(output), self._inferred.sizes.get(output)
        if content is None or sizes is None or len(sizes) > 1 or output.is_graph_output():
            return
        numbers = [size for size in content if isinstance(size, int)]
        if len(numbers) == len(content):
            new = self._editor.constant(np.array(numbers if sizes else numbers[0], np.int64), "size")
        elif sizes == () and content[0] in _FREE_SIZES:
            new = self._free_size(str(content[0]))
            self._editor.insert_before(node)
        else:
            return
        output.replace_all_uses_with(new)

    def _free_size(self, name: str) -> ir.Value:
        editor = self._editor
        size = editor.size_of(editor.input("input_ids"), _FREE_SIZES.index(name))
        return editor.op("Squeeze", [size, editor.int64s(0)], dtype=ir.DataType.INT64)

    def _copy_sizes(self, node: ir.Node) -> None:
        """Let a reshape copy the free sizes that stay at their place, instead of being told them."""
        data, shape = node.inputs[0], node.inputs[1]
        before = self._inferred.sizes.get(data) if data is not None else None
        wanted = self._inferred.sizes.get(node.outputs[0])
        if before is None or wanted is None or weight_of(shape) is not None:
            return
        copied = [0 if size == old and isinstance(size, str) else size for size, old in zip_longest(wanted, before)]
        copied = copied[: len(wanted)]
        if copied.count(None) == 1:
            copied[copied.index(None)] = -1
        numbers = [size for size in copied if isinstance(size, int)]
        if len(numbers) == len(wanted):
            node.replace_input_with(1, self._editor.int64s(*numbers))
