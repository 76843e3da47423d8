"""Whether a graph has the inputs and outputs that its manifest promises."""

import onnxruntime as ort

from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.package.manifest import COMMIT_NAME, Manifest


def check_contract(session: ort.InferenceSession, manifest: Manifest) -> None:
    """Raise ProviderError where a graph's inputs and outputs are not what the manifest says."""
    kv_shape = [manifest.num_kv_heads, manifest.head_dim]
    inputs = {node.name: node for node in session.get_inputs()}
    wanted = {"input_ids", "position_ids", "tree_mask", "write_pos", "logit_rows", *manifest.past_names()}
    if manifest.sliding_window is not None:
        wanted.add("tree_mask_sliding")
    _check_names("inputs", set(inputs), wanted)
    for name in manifest.past_names():
        shape = inputs[name].shape or []
        if len(shape) != 4 or [shape[1], shape[3]] != kv_shape:
            raise ProviderError(f"The graph's {name} has shape {shape}, the manifest says {kv_shape}: export again.")
    outputs = {node.name: node for node in session.get_outputs()}
    promised = {"logits", "top_ids", "top_logits", *manifest.present_names()}
    if COMMIT_NAME in manifest.files:
        promised.add("log_sum_exp")
    _check_names("outputs", set(outputs), promised)
    for name, size, noun in (
        ("logits", manifest.vocab_size, "logits"),
        ("top_ids", manifest.top_k, "top successors"),
        ("top_logits", manifest.top_k, "top successors"),
    ):
        shape = outputs[name].shape or []  # ONNX lets an output go without
        if len(shape) != 3 or shape[2] != size:
            raise ProviderError(f"The graph's {name} has shape {shape}, the manifest says {size} {noun}: export again.")


def _check_names(kind: str, found: set[str], wanted: set[str]) -> None:
    if found != wanted:
        odd = ", ".join(sorted(found ^ wanted)[:3])
        raise ProviderError(f"The graph's {kind} differ from the manifest ({odd}): export the model again.")
