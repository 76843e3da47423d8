"""x * cos + rotate_half(x) * sin becomes RotaryEmbedding (opset 23)."""

import onnx_ir as ir

from reader_edge_export.fusion.matching import consumers, number_of, other_input, producer
from reader_edge_export.graph_editor import GraphEditor, weight_of


def fuse_rotary(editor: GraphEditor) -> None:
    """Fuse every rotary embedding whose two halves turn by the same angles."""
    for node in list(editor.graph):
        if node.op_type == "MatMul":
            _drop_expansion(node)
            _spell_out(editor, node)
    for node in list(editor.graph):
        if node.op_type == "Neg":
            _fuse(editor, node)


def _drop_expansion(product: ir.Node) -> None:
    """Frequencies are repeated for the batch before they meet the positions, which the product does by itself."""
    expanded = producer(product.inputs[0], "Expand")
    frequencies = weight_of(expanded.inputs[0]) if expanded is not None else None
    if expanded is not None and frequencies is not None and frequencies.ndim == 3 and len(frequencies) == 1:
        product.replace_input_with(0, expanded.inputs[0])


def _spell_out(editor: GraphEditor, product: ir.Node) -> None:
    """Frequencies (1, D / 2, 1) times positions (B, 1, N) sum nothing, and must be no MatMul: where GPUs round the
    factors of one to 11 bits, as they do by default, positions beyond 2,048 would fall together."""
    frequencies = weight_of(product.inputs[0])
    if frequencies is not None and frequencies.ndim == 3 and frequencies.shape[-1] == 1:
        editor.replace(product, [editor.op("Mul", list(product.inputs))])


def _fuse(editor: GraphEditor, negated: ir.Node) -> None:
    """Follow one negated half to the sum, and replace what is on the way."""
    rotated = next(consumers(negated.outputs[0], "Concat"), None)
    source = _rotated_source(rotated) if rotated is not None else None
    if rotated is None or source is None:
        return
    for turned in consumers(rotated.outputs[0], "Mul"):
        sine = _angles(other_input(turned, rotated.outputs[0]), "Sin")
        for total in consumers(turned.outputs[0], "Add"):
            straight = producer(other_input(total, turned.outputs[0]), "Mul")
            cosine = _angles(other_input(straight, source), "Cos") if straight is not None else None
            if sine is not None and cosine is not None:
                halves = [_first_half(editor, angles) for angles in (cosine, sine)]
                editor.replace(total, [editor.op("RotaryEmbedding", [source, *halves])])
                return


def _first_half(editor: GraphEditor, angles: ir.Value) -> ir.Value:
    """Of a cosine or sine (B, N, D), (B, N, D / 2)."""
    assert angles.shape is not None
    size = angles.shape[-1]
    assert isinstance(size, int)
    half = editor.op("Slice", [angles, editor.int64s(0), editor.int64s(size // 2), editor.int64s(-1)])
    half.shape = ir.Shape([*angles.shape[:-1], size // 2])
    return half


def _rotated_source(rotated: ir.Node) -> ir.Value | None:
    """x, where a node is concat(-x[half:], x[:half])."""
    if len(rotated.inputs) != 2:
        return None
    negated, first = producer(rotated.inputs[0], "Neg"), producer(rotated.inputs[1], "Slice")
    second = producer(negated.inputs[0], "Slice") if negated is not None else None
    if first is None or second is None or first.inputs[0] is not second.inputs[0] or first.inputs[0] is None:
        return None
    source = first.inputs[0]
    size = source.shape[-1] if source.shape is not None else None
    if not isinstance(size, int) or len(source.shape or ()) != 4:
        return None
    is_halved = number_of(first.inputs[1]) == 0 and number_of(second.inputs[1]) == size // 2
    return source if is_halved and size % 2 == 0 else None


def _angles(value: ir.Value | None, function: str) -> ir.Value | None:
    """The cosine or sine (B, N, D) behind (B, 1, N, D), if its second half repeats its first."""
    unsqueezed = producer(value, "Unsqueeze")
    if unsqueezed is None or unsqueezed.inputs[0] is None:
        return None
    angles = unsqueezed.inputs[0]
    if angles.shape is None or not isinstance(angles.shape[-1], int):
        return None
    node = producer(angles, function, "Mul")
    if node is not None and node.op_type == "Mul":  # scaled rotary embeddings, or a scale of one
        node = producer(node.inputs[0], function)
    repeated = producer(node.inputs[0], "Concat") if node is not None else None
    is_repeated = repeated is not None and len(repeated.inputs) == 2 and repeated.inputs[0] is repeated.inputs[1]
    return angles if is_repeated else None
