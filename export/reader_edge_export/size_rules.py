"""How operators pass sizes on: from the sizes of their inputs to those of their output, as far as they are known.

A size is a number, the name of a free size ("B", "N", ...), or None where it is not known. `contents` holds the
elements of the integer vectors and scalars that are themselves sizes.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from reader_edge_export.graph_editor import integer_attribute
from reader_edge_export.markers import TREE_ATTENTION

Size = int | str | None
Sizes = tuple[Size, ...]
Contents = Mapping[ir.Value, Sizes]


def output_sizes(node: ir.Node, sizes: Sequence[Sizes | None], contents: Contents) -> Sizes | None:
    """Sizes of the node's (first) output, or None."""
    if node.op_type in _SAME:
        return sizes[0]
    if node.op_type in _BROADCASTING:
        return _broadcast(sizes)
    rule = _RULES.get(node.op_type)
    return None if rule is None or sizes[0] is None else rule(node, sizes, contents)


def output_content(node: ir.Node, contents: Contents) -> Sizes | None:
    """Elements of the node's output, where it computes with sizes."""
    known = [contents[value] for value in node.inputs if value is not None and value in contents]
    if not known or len(known) != len(node.inputs):
        return None
    if node.op_type in ("Unsqueeze", "Squeeze", "Identity") or _is_integer_cast(node):
        return known[0]
    compute = _CONTENTS.get(node.op_type)
    return None if compute is None else compute(known)


def _is_integer_cast(node: ir.Node) -> bool:
    return node.op_type == "Cast" and integer_attribute(node, "to", 0) == int(ir.DataType.INT64)


def _joined(contents: Sequence[Sizes]) -> Sizes | None:
    return tuple(size for content in contents for size in content)


def _gathered(contents: Sequence[Sizes]) -> Sizes | None:
    return tuple(contents[0][index] for index in contents[1] if isinstance(index, int))


def _sliced(contents: Sequence[Sizes]) -> Sizes | None:
    start, end = contents[1][0], contents[2][0]
    step = contents[4][0] if len(contents) > 4 else 1
    if not (isinstance(start, int) and isinstance(end, int) and isinstance(step, int)):
        return None
    return contents[0][start:end:step]


def _arithmetic(function: Callable[[int, int], int]) -> Callable[[Sequence[Sizes]], Sizes | None]:
    def compute(contents: Sequence[Sizes]) -> Sizes | None:
        numbers = [size for content in contents for size in content if isinstance(size, int)]
        is_scalar = [len(content) for content in contents] == [1, 1]
        return (function(*numbers),) if is_scalar and len(numbers) == 2 else None

    return compute


_CONTENTS: dict[str, Callable[[Sequence[Sizes]], Sizes | None]] = {
    "Add": _arithmetic(lambda left, right: left + right),
    "Sub": _arithmetic(lambda left, right: left - right),
    "Mul": _arithmetic(lambda left, right: left * right),
    "Div": _arithmetic(lambda left, right: left // right),
    "Concat": _joined,
    "Gather": _gathered,
    "Slice": _sliced,
}


def _broadcast(sizes: Sequence[Sizes | None]) -> Sizes | None:
    result: Sizes = ()
    for other in sizes:
        if other is None:
            return None
        rank = max(len(result), len(other))
        left, right = (1,) * (rank - len(result)) + result, (1,) * (rank - len(other)) + other
        result = tuple(_wider(a, b) for a, b in zip(left, right, strict=True))
    return result


def _wider(left: Size, right: Size) -> Size:
    """Two sizes broadcast together; in a valid graph an unknown one is 1 or equal to the other."""
    if left is None:
        return None if right == 1 else right
    return right if left == 1 else left


def _matmul(node: ir.Node, sizes: Sequence[Sizes | None], contents: Contents) -> Sizes | None:
    left, right = sizes[0], sizes[1]
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return None
    leading = _broadcast([left[:-2], right[:-2]])
    return None if leading is None else (*leading, left[-2], right[-1])


def _gemm(node: ir.Node, sizes: Sequence[Sizes | None], contents: Contents) -> Sizes | None:
    data, weight = sizes[0], sizes[1]
    if data is None or weight is None or integer_attribute(node, "transA", 0):
        return None
    return (data[0], weight[0] if integer_attribute(node, "transB", 0) else weight[1])


def _gather(node: ir.Node, sizes: Sequence[Sizes | None], contents: Contents) -> Sizes | None:
    data, indices = sizes[0] or (), sizes[1]
    axis = integer_attribute(node, "axis", 0) % len(data)
    return None if indices is None else data[:axis] + indices + data[axis + 1 :]


def _transpose(node: ir.Node, sizes: Sequence[Sizes | None], contents: Contents) -> Sizes | None:
    data = sizes[0] or ()
    return tuple(data[axis] for axis in node.attributes["perm"].as_ints())


def _unsqueeze(node: ir.Node, sizes: Sequence[Sizes | None], contents: Contents) -> Sizes | None:
    data, axes = list(sizes[0] or ()), _axes(node, contents)
    if axes is None:
        return None
    rank = len(data) + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        data.insert(axis, 1)
    return tuple(data)


def _squeeze(node: ir.Node, sizes: Sequence[Sizes | None], contents: Contents) -> Sizes | None:
    return () if sizes[0] == (1,) else None


def _reduce(node: ir.Node, sizes: Sequence[Sizes | None], contents: Contents) -> Sizes | None:
    data, axes = list(sizes[0] or ()), _axes(node, contents)
    if axes is None or not integer_attribute(node, "keepdims", 1):
        return None
    for axis in axes:
        data[axis] = 1
    return tuple(data)


def _axes(node: ir.Node, contents: Contents) -> list[int] | None:
    content = contents.get(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else None
    return None if content is None else [axis for axis in content if isinstance(axis, int)]


def _concat(node: ir.Node, sizes: Sequence[Sizes | None], contents: Contents) -> Sizes | None:
    parts = [part for part in sizes if part is not None]
    if len(parts) != len(sizes):
        return None
    axis = integer_attribute(node, "axis", 0) % len(parts[0])
    numbers = [part[axis] for part in parts if isinstance(part[axis], int)]
    total = sum(number for number in numbers if isinstance(number, int)) if len(numbers) == len(parts) else None
    return (*parts[0][:axis], total, *parts[0][axis + 1 :])


def _slice(node: ir.Node, sizes: Sequence[Sizes | None], contents: Contents) -> Sizes | None:
    """A slice along one known axis; the axis' size stays unknown where its bounds are."""
    data = list(sizes[0] or ())
    known = [contents.get(value, (None,)) if value is not None else (None,) for value in node.inputs[1:]]
    start, end, axis, step = [content[0] for content in known] + [None, 1][len(known) - 2 :]
    if not isinstance(axis, int) or any(len(content) != 1 for content in known):
        return None
    size = data[axis]
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int) and isinstance(step, int):
        data[axis] = len(range(size)[start:end:step])
    else:
        data[axis] = None
    return tuple(data)


def _expand(node: ir.Node, sizes: Sequence[Sizes | None], contents: Contents) -> Sizes | None:
    data, shape = sizes[0] or (), sizes[1]
    if shape is None or not isinstance(shape[0], int):
        return None
    widened = (1,) * (shape[0] - len(data)) + data
    return tuple(size if isinstance(size, int) and size > 1 else None for size in widened)


def _reshape(node: ir.Node, sizes: Sequence[Sizes | None], contents: Contents) -> Sizes | None:
    data, wanted = sizes[0] or (), contents.get(node.inputs[1]) if node.inputs[1] is not None else None
    if wanted is None:
        return None
    wanted = tuple(data[axis] if size == 0 else size for axis, size in enumerate(wanted))
    return tuple(_remainder(data, wanted) if size == -1 else size for size in wanted)


def _remainder(data: Sizes, wanted: Sizes) -> Size:
    """What -1 stands for in a reshape of `data` to `wanted`: the one size or the quotient that is left, else None."""
    names = [size for size in data if not isinstance(size, int)]
    unmatched = 0
    for size in wanted:
        if size in names:
            names.remove(size)
        elif not isinstance(size, int):
            unmatched += 1
    before = int(np.prod([size for size in data if isinstance(size, int)]))
    after = int(np.prod([size for size in wanted if isinstance(size, int) and size != -1]))
    if names or unmatched:
        return names[0] if len(names) == 1 and not unmatched and before == after else None
    return before // after


def _shape(node: ir.Node, sizes: Sequence[Sizes | None], contents: Contents) -> Sizes | None:
    return (len(sizes[0] or ()),)


def _constant_of_shape(node: ir.Node, sizes: Sequence[Sizes | None], contents: Contents) -> Sizes | None:
    return contents.get(node.inputs[0]) if node.inputs[0] is not None else None


_SAME = {
    "Cast",
    "Cos",
    "Erf",
    "Identity",
    "LayerNormalization",
    "Neg",
    "Sigmoid",
    "Sin",
    "Sqrt",
    "Tanh",
    TREE_ATTENTION,
}
_BROADCASTING = {"Add", "Div", "Equal", "Mul", "Pow", "Sub", "Where"}
_RULES: dict[str, Callable[[ir.Node, Sequence[Sizes | None], Contents], Sizes | None]] = {
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Gather": _gather,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "ReduceMean": _reduce,
    "Reshape": _reshape,
    "Shape": _shape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
