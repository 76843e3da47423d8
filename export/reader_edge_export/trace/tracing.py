"""Replaces the source's attention and matrices while it is traced, so that the graph has marker operators there."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from reader_edge_export.sources.latent_heads import LatentHeads
from reader_edge_export.sources.layered_model import layers_of, state_of
from reader_edge_export.sources.source_model import SourceModel, streamed_product
from reader_edge_export.sources.weights import ExpertMatrices
from reader_edge_export.trace.latent_attention import absorbed_queries, latent_values
from reader_edge_export.trace.markers import (
    EMBEDDING,
    EXPERT_LINEAR,
    LAYER_STATE,
    LINEAR,
    LOGIT_HEAD,
    SHARED_ATTENTION,
    TREE_ATTENTION,
    Outputs,
    mark,
)
from reader_edge_runtime.errors import UnsupportedArchitectureError
from reader_edge_runtime.package.layer import Layer

ATTENTION_NAME = "reader_edge_tree"

# Arguments of the attention call that do not change its result here; any other one that is set is refused.
HARMLESS = {
    "cache_position",
    "dropout",
    "is_causal",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "position_ids",
    "return_dict",
    "use_cache",
}


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """What one attention layer of the source asks for.

    sliding_window: tokens seen, its own included, or None. shares: the layer whose keys and values it reads in place of
    its own, or None. is_latent: whether its values are its keys.
    """

    scale: float
    softcap: float
    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None
    shares: int | None = None
    is_latent: bool = False


@dataclass(slots=True)
class TracedLayer:
    """What one layer of the source asks for: attention, states, both, or neither.

    states: the sizes of each state by its kind, without the batch. capsules: numbers of a token that replay it.
    """

    attention: AttentionLayer | None = None
    states: dict[str, tuple[int, ...]] = field(default_factory=dict)
    capsules: dict[str, int] = field(default_factory=dict)

    @property
    def kept(self) -> Layer:
        """As the manifest has it."""
        attention = self.attention
        layer = (
            Layer.none()
            if attention is None
            else Layer.attention(attention.num_kv_heads, attention.head_dim, attention.shares, attention.is_latent)
        )
        return layer.with_states(self.states, self.capsules) if self.states else layer


def package_layers(layers: Sequence[TracedLayer]) -> tuple[Layer, ...]:
    """As the manifest has them; () where all have attention, of one size and with keys and values of their own."""
    kept = tuple(layer.kept for layer in layers)
    first = kept[0]
    is_plain = first.kind == "attention" and first.has_cache and not first.is_latent
    return () if is_plain and all(each == first for each in kept) else kept


@dataclass(slots=True)
class Trace:
    """The graph inputs of the forward pass being traced by their names, and what its layers left.

    inputs: past_key and past_value of a layer, (B, H, S, D), state and pending of its states; where they are missing,
    what layers read is recorded. max_context: windows at least this wide are no windows.
    outputs: by name, what becomes an output of the graph beside the logits. layer: the one that is being traced.
    keys: of each layer with keys of its own.
    """

    inputs: Mapping[str, torch.Tensor]
    max_context: int
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    layers: dict[int, TracedLayer] = field(default_factory=dict)
    layer: int = -1
    keys: dict[int, torch.Tensor] = field(default_factory=dict)


current_trace: ContextVar[Trace] = ContextVar("current_trace")


@contextmanager
def named_matrices(source: SourceModel) -> Iterator[None]:
    """While entered, each use of a matrix leaves a marker with the matrix's name, the output embedding's its own."""
    names = source.names
    shapes = {id(parameter): tuple(parameter.shape) for parameter in source.skeleton.parameters()}
    functions = torch.nn.functional
    linear, embedding = functions.linear, functions.embedding

    def marked_linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        (product,) = mark(LINEAR, Outputs.product(shapes[id(weight)][0]), rows, parameter_s=names[id(weight)])
        return product if bias is None else bias + product

    def marked_embedding(ids: torch.Tensor, weight: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return mark(EMBEDDING, Outputs.looked_up(shapes[id(weight)][1]), ids, parameter_s=names[id(weight)])[0]

    def marked_conv1d(module: Conv1D, rows: torch.Tensor) -> torch.Tensor:
        key = id(module.weight)
        (product,) = mark(LINEAR, Outputs.product(shapes[key][1]), rows, parameter_s=names[key])
        return module.bias + product

    def marked_experts(matrices: ExpertMatrices, rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        num_ranks, name = int(experts.shape[1]), matrices.name
        chosen = Outputs.chosen(None, num_ranks, matrices.shape[1])
        return mark(EXPERT_LINEAR, chosen, rows, experts, parameter_s=name, num_ranks_i=num_ranks)[0]

    def marked_head(hidden: torch.Tensor) -> torch.Tensor:
        inputs = [hidden, current_trace.get().inputs["logit_rows"]]
        inputs += [] if getattr(head, "bias", None) is None else [head.bias]
        chosen = Outputs.chosen(None, None, shapes[id(head.weight)][0])
        return mark(LOGIT_HEAD, chosen, *inputs, parameter_s=names[id(head.weight)])[0]

    head = source.skeleton.get_output_embeddings()
    forwards: dict[Any, Callable[..., torch.Tensor]] = {
        module: partial(marked_conv1d, module) for module in source.skeleton.modules() if isinstance(module, Conv1D)
    }
    if head is not None:  # of a tower of images
        forwards[head] = marked_head
    functions.linear, functions.embedding = marked_linear, marked_embedding  # type: ignore[assignment]
    for experts in source.experts.values():
        experts.multiply = marked_experts
    try:
        with _replaced(forwards):
            yield
    finally:
        functions.linear, functions.embedding = linear, embedding
        for experts in source.experts.values():
            experts.multiply = streamed_product


@contextmanager
def _replaced(forwards: Mapping[Any, Callable[..., torch.Tensor]]) -> Iterator[None]:
    """While entered, these modules do these things in place of their own."""
    for module, forward in forwards.items():
        module.forward = forward
    try:
        yield
    finally:
        for module in forwards:
            del module.forward


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    **other: object,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: q (B, Hq, N, D), k and v (B, H, N, D), sinks (Hq,) -> (B, N, Hq, D).

    Of a module with latent heads, k and v are the latent (`latent_attention`), and q and the result its own.
    Raises UnsupportedArchitectureError for anything in the call that the marker cannot express.
    """
    odd = sorted(name for name, value in other.items() if value is not None and name not in HARMLESS)
    if odd:
        raise UnsupportedArchitectureError(f"The model's attention uses {', '.join(odd)}, which cannot be exported.")
    trace = current_trace.get()
    index = _layer_index(module)
    heads: LatentHeads | None = getattr(module, "latent_heads", None)
    positions = trace.inputs["position_ids"]
    query = query if heads is None else absorbed_queries(heads, query, positions)
    traced = trace.layers.setdefault(index, TracedLayer())
    if traced.attention is not None or value.shape != key.shape or not getattr(module, "is_causal", True):
        raise UnsupportedArchitectureError(f"Attention layer {index} is not plain causal self-attention.")
    is_windowed = sliding_window is not None and sliding_window < trace.max_context
    source = next((other for other, written in trace.keys.items() if written is key), None)
    layer = AttentionLayer(
        scale=_scale(module, query.shape[-1], scaling),
        softcap=float(softcap or 0.0),
        num_heads=int(query.shape[1]),
        num_kv_heads=int(key.shape[1]),
        head_dim=int(query.shape[3]),
        sliding_window=sliding_window if is_windowed else None,
        shares=source,
        is_latent=value is key,
    )
    traced.attention = layer
    attributes = {"scale_f": layer.scale, "softcap_f": layer.softcap, "num_heads_i": layer.num_heads}
    attributes |= {"kv_heads_i": layer.num_kv_heads, "head_dim_i": layer.head_dim}
    mask = trace.inputs.get("tree_mask_sliding") if is_windowed else None
    mask = trace.inputs["tree_mask"] if mask is None else mask
    if source is not None:
        present = (trace.outputs[f"present_{kind}.{source}"] for kind in ("key", "value"))
        (output,) = mark(SHARED_ATTENTION, Outputs.like(0), query, *present, mask, **attributes)
        return output.transpose(1, 2).contiguous(), None
    trace.keys[index] = key
    written = {"key": key} if layer.is_latent else {"key": key, "value": value}
    past = [trace.inputs.get(f"past_{kind}.{index}", own) for kind, own in written.items()]
    sinks = [] if s_aux is None else [s_aux]
    inputs = query, key, value, past[0], past[-1], trace.inputs["write_pos"], mask, *sinks
    like = Outputs.like(0, *range(3, 3 + len(past)))  # the query and the past
    outputs = mark(TREE_ATTENTION, like, *inputs, **attributes)
    trace.outputs |= {f"present_{kind}.{index}": each for kind, each in zip(written, outputs[1:], strict=True)}
    output = outputs[0].transpose(1, 2).contiguous()
    return output if heads is None else latent_values(heads, output, positions), None


def _scale(module: torch.nn.Module, head_dim: int, scaling: float | None) -> float:
    if scaling is not None:
        return float(scaling)
    # GPT-2 hands no scaling over and keeps it in flags (transformers, modeling_gpt2.eager_attention_forward).
    scale = 1.0 / math.sqrt(head_dim) if getattr(module, "scale_attn_weights", True) else 1.0
    return scale / (_layer_index(module) + 1) if getattr(module, "scale_attn_by_inverse_layer_idx", False) else scale


def _layer_index(module: torch.nn.Module) -> int:
    index = module.layer_idx
    if not isinstance(index, int):
        raise UnsupportedArchitectureError("The model's attention layers are not numbered.")
    return index


AttentionInterface.register(ATTENTION_NAME, tree_attention)


AttentionMaskInterface.register(ATTENTION_NAME, lambda *args, **kwargs: None)  # the graph brings its own masks


def default_state_ids(num_layers: int) -> tuple[int, ...]:
    """Those that EAGLE-3 reads by default (arXiv 2503.01840, section 3), and what the logit head reads."""
    low, middle, high = min(2, num_layers), num_layers // 2, max(num_layers - 3, 0)
    return tuple(sorted({low, middle, high, num_layers + 1}))


def state_name(number: int) -> str:
    """Of the graph's output."""
    return f"{LAYER_STATE}{number}"


@contextmanager
def noted_states(model: PreTrainedModel, state_ids: Sequence[int]) -> Iterator[None]:
    """While entered, each of these states becomes an output of the trace. state_ids: see `Manifest`."""
    layers = layers_of(model)
    with ExitStack() as hooks:
        for number in state_ids:
            if number == len(layers):
                hook: Any = layers[-1].register_forward_hook(partial(_note_output, model, number))
            else:
                module = layers[number] if number < len(layers) else model.get_output_embeddings()
                assert isinstance(module, torch.nn.Module)
                hook = module.register_forward_pre_hook(partial(_note_input, model, number), with_kwargs=True)
            hooks.callback(hook.remove)
        yield


def _note_input(
    model: PreTrainedModel, number: int, module: torch.nn.Module, inputs: Any, named: dict[str, Any]
) -> None:
    hidden = inputs[0] if inputs else named["hidden_states"]
    current_trace.get().outputs[state_name(number)] = state_of(model, hidden)


def _note_output(model: PreTrainedModel, number: int, module: torch.nn.Module, inputs: Any, output: Any) -> None:
    hidden = output[0] if isinstance(output, tuple) else output
    current_trace.get().outputs[state_name(number)] = state_of(model, hidden)
