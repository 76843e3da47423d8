"""Replaces the source's recurrent functions while it is traced, so that the graph has marker operators there.

transformers calls them by their names in the model's file, where they are replaced. They get no layer: a hook
notes which one is called.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from reader_edge_export.trace.markers import TREE_CONV, TREE_DELTA, TREE_MAMBA2, Outputs, mark
from reader_edge_export.trace.tracing import HARMLESS, TracedLayer, current_trace
from reader_edge_runtime.errors import UnsupportedArchitectureError

_HARMLESS = (*HARMLESS, "chunk_size", "output_final_state", "return_final_states")  # there are no states to return
_KINDS = {TREE_CONV: "conv", TREE_DELTA: "delta", TREE_MAMBA2: "mamba"}
_UNIT_EPSILON = 1e-6  # of transformers
_NO_LIMIT = (0.0, float("inf"))  # of softplus
_TREE = ("parents", "num_kept", "num_pending")


@contextmanager
def marked_recurrences(model: PreTrainedModel) -> Iterator[None]:
    """While entered, recurrent functions of a model's file leave markers."""
    file: Any = sys.modules[type(model).__module__]
    computed = {name: getattr(file, name) for name in _STAND_INS if hasattr(file, name)}
    mixers = [module for module in model.modules() if hasattr(module, "layer_idx")] if computed else []
    hooks = [mixer.register_forward_pre_hook(_note_layer) for mixer in mixers]
    for name in computed:
        setattr(file, name, _STAND_INS[name])
    try:
        yield
    finally:
        for name, function in computed.items():
            setattr(file, name, function)
        for hook in hooks:
            hook.remove()


def _note_layer(mixer: Any, _: object) -> None:
    current_trace.get().layer = mixer.layer_idx


def _marked(operator: str, sizes: tuple[int, ...], capsule: int, like: int, inputs: list[torch.Tensor]) -> torch.Tensor:
    """The output, shaped as the inputs[like]. sizes: of the state; capsule: numbers of a node that replay it."""
    trace, kind = current_trace.get(), _KINDS[operator]
    layer = trace.layers.setdefault(trace.layer, TracedLayer())
    if kind in layer.states:
        raise UnsupportedArchitectureError(f"Layer {trace.layer} has more than one {operator}.")
    layer.states[kind], layer.capsules[kind] = sizes, capsule
    name = f"{kind}.{trace.layer}"
    if f"state_{name}" not in trace.inputs:  # only what it reads is recorded
        return inputs[like].clone()
    shared = [trace.inputs[each] for each in (*_TREE, f"state_{name}", f"pending_{name}")]
    place = len(shared) + like

    def made(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parents, _, _, state, pending, *_ = given
        return given[place].clone(), state.clone(), pending.new_zeros(*parents.shape, pending.shape[2])

    outputs = Outputs(made, Outputs.like(place, 3, 4).types)  # like the state and the pending capsules
    output, *left = mark(operator, outputs, *shared, *inputs)
    trace.outputs |= {f"{what}_{name}": each for what, each in zip(("present", "capsule"), left, strict=True)}
    return output


def _conv(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    **other: object,
) -> torch.Tensor:
    """A depthwise causal convolution of hidden states (B, C, N) with a weight (C, K)."""
    _refuse(other)
    num_channels, num_taps = (int(size) for size in weight.shape)
    inputs = [hidden_states.transpose(1, 2), weight, *([] if bias is None else [bias])]
    mixed = _marked(TREE_CONV, (num_taps - 1, num_channels), num_channels, 0, inputs).transpose(1, 2)
    return mixed if activation is None else ACT2FN[activation](mixed)


def _delta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **other: object,
) -> tuple[torch.Tensor, None]:
    """The gated delta rule: query, key (B, N, Hk, Dk), value (B, N, Hv, Dv), log decay g and beta (B, N, Hv)."""
    _refuse(other)
    if use_qk_l2norm_in_kernel:
        query, key = _unit(query), _unit(key)
    num_key_heads, key_dim = (int(size) for size in key.shape[2:])
    num_heads, value_dim = (int(size) for size in value.shape[2:])
    capsule = num_key_heads * key_dim + num_heads * (value_dim + 2)
    inputs = [query * key_dim**-0.5, key, value, g, beta]
    return _marked(TREE_DELTA, (num_heads, key_dim, value_dim), capsule, 2, inputs), None


def _mamba2(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = _NO_LIMIT,
    **other: Any,
) -> torch.Tensor:
    """Mamba2's recurrence: hidden states (B, N, H, P), dt (B, N, H), a and D (H,), b and c (B, N, G, S)."""
    d = other.pop("D")
    _refuse(other)
    dt = dt if dt_bias is None else dt + dt_bias
    dt = torch.nn.functional.softplus(dt) if dt_softplus else dt
    dt = dt if tuple(dt_limit) == _NO_LIMIT else dt.clamp(*dt_limit)
    num_heads, head_dim = (int(size) for size in hidden_states.shape[2:])
    num_groups, state_dim = (int(size) for size in b.shape[2:])
    capsule = num_groups * state_dim + num_heads * (head_dim + 1)
    return _marked(TREE_MAMBA2, (num_heads, state_dim, head_dim), capsule, 0, [hidden_states, dt, a, b, c, d])


def _unit(rows: torch.Tensor) -> torch.Tensor:
    return rows * torch.rsqrt((rows * rows).sum(dim=-1, keepdim=True) + _UNIT_EPSILON)


_STAND_INS: dict[str, Callable[..., Any]] = {  # by the names that files of transformers have for what they replace
    "causal_conv1d_fn": _conv,
    "torch_chunk_gated_delta_rule": _delta,
    "mamba2_chunk_scan": _mamba2,
}


def _refuse(others: dict[str, object]) -> None:
    odd = sorted(name for name, value in others.items() if value is not None and name not in _HARMLESS)
    if odd:
        raise UnsupportedArchitectureError(f"The model's recurrence uses {', '.join(odd)}, which cannot be exported.")
