"""Whether the graph of a speculator takes and gives what its package's manifest says."""

from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.wheel import ort
from reader_edge_runtime.package.manifest import Manifest

_INTEGERS, _NUMBERS = "tensor(int64)", "tensor(float)"


def check_speculator(session: ort.InferenceSession, manifest: Manifest) -> None:
    """Raise ProviderError where it does not."""
    try:
        inputs = {node.name: (node.type, node.shape) for node in session.get_inputs()}
        outputs = {node.name: (node.type, node.shape or []) for node in session.get_outputs()}
    except UnicodeDecodeError as error:  # ONNX Runtime loads such a graph and fails to tell of it
        raise ProviderError(f"The speculator's names are not UTF-8 ({error}): export the model again.") from None
    _check("inputs", inputs, _inputs(manifest))
    _check("outputs", outputs, _outputs(manifest))


Tensors = dict[str, tuple[str, int, dict[int, int]]]  # type, rank, and the sizes that are fixed, by axis


def _inputs(manifest: Manifest) -> Tensors:
    part, hidden_size = manifest.speculator, manifest.hidden_size
    assert part is not None
    assert hidden_size is not None
    kept = _NUMBERS, 4, {1: part.num_kv_heads, 3: part.head_dim}
    return {
        "input_ids": (_INTEGERS, 2, {}),
        "position_ids": (_INTEGERS, 2, {}),
        "tree_mask": (_NUMBERS, 4, {1: 1}),
        "write_pos": (_INTEGERS, 1, {}),
        "logit_rows": (_INTEGERS, 2, {}),
        "target_states": (_NUMBERS, 3, {2: len(part.state_ids) * hidden_size}),
        "own_states": (_NUMBERS, 3, {2: part.hidden_size}),
        **{f"past_{kind}.{layer}": kept for layer in range(part.num_layers) for kind in ("key", "value")},
    }


def _outputs(manifest: Manifest) -> Tensors:
    part = manifest.speculator
    assert part is not None
    kept: tuple[str, int, dict[int, int]] = _NUMBERS, 4, {}
    return {
        "top_ids": (_INTEGERS, 3, {2: part.top_k}),
        "top_logits": (_NUMBERS, 3, {2: part.top_k}),
        "log_sum_exp": (_NUMBERS, 2, {}),
        "next_states": (_NUMBERS, 3, {2: part.hidden_size}),
        **{f"present_{kind}.{layer}": kept for layer in range(part.num_layers) for kind in ("key", "value")},
    }


def _check(kind: str, found: dict[str, tuple[str, list[object]]], wanted: Tensors) -> None:
    if set(found) != set(wanted):
        odd = ", ".join(f"{name!r:.80}" for name in sorted(set(found) ^ set(wanted))[:3])
        raise ProviderError(f"The speculator's {kind} differ from the manifest ({odd}): export the model again.")
    for name, (element, rank, sizes) in wanted.items():
        found_element, shape = found[name]
        is_sized = len(shape) == rank and all(shape[axis] == size for axis, size in sizes.items())
        if found_element != element or not is_sized:
            raise ProviderError(
                f"The speculator's {name} is a {found_element} of {shape!s:.80}, the manifest says {element} with "
                f"{list(sizes.values())}: export the model again."
            )
