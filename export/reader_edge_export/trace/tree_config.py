"""Trace a model so that its ONNX graph follows the contract of `reader_edge_runtime.package.manifest`.

Optimum's TasksManager says which model types can do the task, and by which config class their graphs are described.
A survey pass first asks every layer what it wants; the trace then has one marker op per layer.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from optimum.exporters.base import ExporterConfig
from optimum.exporters.tasks import TasksManager
from optimum.utils import NormalizedTextConfig
from transformers import PretrainedConfig, PreTrainedModel

from reader_edge_export.sources.architectures import SUPPORTED
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.trace.activations import spelt_out_xielu
from reader_edge_export.trace.gemma3n import spelt_out_gemma3n
from reader_edge_export.trace.image_rows import DynamicAxes, ImageRows, placed_rows
from reader_edge_export.trace.latent_attention import latent_caches
from reader_edge_export.trace.recurrent_tracing import marked_recurrences
from reader_edge_export.trace.rotary_stand_ins import (
    frequencies_before_switch,
    halved_rotary,
    plain_positions,
    tabled_query_scales,
)
from reader_edge_export.trace.tracing import (
    ATTENTION_NAME,
    AttentionLayer,
    Trace,
    TracedLayer,
    current_trace,
    named_matrices,
    noted_states,
    state_name,
)
from reader_edge_runtime.errors import UnsupportedArchitectureError

TRACE_OPSET = 18  # the newest that the TorchScript exporter and all lowerings share
EXPORTER, TASK = "reader-edge", "text-generation"  # by Optimum's names

# Sizes of the traced example; all differ, so that a size fixed by mistake breaks the parity checks.
_B, _N, _R, _PAST, _S, _P = 2, 3, 2, 5, 16, 4
EXAMPLE_SIZES = _B, _N
_WITHOUT_MEMORY = ("mlp", "moe")  # kinds of layers, by transformers' names, that read nothing of earlier tokens


class TreeConfig(ExporterConfig):  # type: ignore[misc]
    """Inputs and outputs of the graph contract. layers: what the model's layers ask for. state_ids: see `Manifest`.

    images: what it takes of them; None for a model of texts.
    """

    NORMALIZED_CONFIG_CLASS = NormalizedTextConfig
    NODES = "input_ids"  # the input that says what nodes are, as the model's forward has it

    def __init__(
        self,
        config: PretrainedConfig,
        task: str,
        layers: Sequence[TracedLayer],
        state_ids: Sequence[int],
        images: ImageRows | None = None,
    ) -> None:
        super().__init__(config, task)
        self._layers = layers
        self._state_ids = state_ids
        self._images = images

    @property
    def inputs(self) -> DynamicAxes:
        axes = {
            self.NODES: {0: "B", 1: "N"},
            "position_ids": {0: "B", 1: "N"},
            "tree_mask": {0: "B", 2: "N", 3: "M"},
            "write_pos": {0: "B"},
            "logit_rows": {0: "B", 1: "R"},
            **_kv_axes("past", self._layers),
        }
        if sliding_window_of(self._layers) is not None:
            axes["tree_mask_sliding"] = axes["tree_mask"]
        if any(layer.states for layer in self._layers):
            axes |= {"parents": {0: "B", 1: "N"}, "num_kept": {0: "B"}, "num_pending": {0: "B"}}
            axes |= _state_axes("state", self._layers) | _state_axes("pending", self._layers)
        return axes if self._images is None else axes | self._images.inputs

    @property
    def outputs(self) -> DynamicAxes:
        states = _state_axes("present", self._layers) | _state_axes("capsule", self._layers)
        states |= {state_name(number): {0: "B", 1: "N"} for number in self._state_ids}
        return {"logits": {0: "B", 1: "R"}, **_kv_axes("present", self._layers), **states}

    def generate_dummy_inputs(self, framework: str = "pt") -> dict[str, torch.Tensor]:
        example = {self.NODES: self.example_nodes(), **_example_inputs(self._layers)}
        if self._images is not None:
            example |= self._images.example(example["position_ids"])
        return {name: example[name] for name in self.inputs}

    def example_nodes(self) -> torch.Tensor:
        """(B, N), or with more axes."""
        return torch.ones(EXAMPLE_SIZES, dtype=torch.long)


for _model_type in SUPPORTED:
    TasksManager.create_register(EXPORTER)(_model_type, TASK)(TreeConfig)


def trace_model(
    source: SourceModel,
    max_context: int,
    graph: Path,
    state_ids: Sequence[int] = (),
    task: str = TASK,
    images: ImageRows | None = None,
) -> list[TracedLayer]:
    """Write the model with its markers to `graph`, and return what each layer asks for. state_ids: see `Manifest`.
    task: by Optimum's name. images: what the graph takes of them; None for one of texts.

    Raises UnsupportedArchitectureError where the graph would not be the model.
    """
    model, layers = source.skeleton, survey(source, max_context, task)
    config = _tree_config(model, task, layers, state_ids, images)
    with (
        torch.no_grad(),
        _markers(source, max_context, () if images is None else images.axes),
        nullcontext() if images is None else placed_rows(model, images),
        noted_states(model, state_ids),
        _tree_forward(model, max_context, config),
    ):
        torch.onnx.export(
            model,
            tuple(config.generate_dummy_inputs().values()),
            graph,
            input_names=list(config.inputs),
            output_names=list(config.outputs),
            dynamic_axes=config.inputs | config.outputs,
            opset_version=TRACE_OPSET,
            dynamo=False,  # the markers are TorchScript's
        )
    return layers


def _tree_config(
    model: PreTrainedModel,
    task: str,
    layers: Sequence[TracedLayer],
    state_ids: Sequence[int],
    images: ImageRows | None = None,
) -> TreeConfig:
    constructor = TasksManager.get_exporter_config_constructor(
        EXPORTER, model_type=model.config.model_type, task=task, library_name="transformers"
    )
    config: TreeConfig = constructor(model.config, layers=layers, state_ids=state_ids, images=images)
    return config


def survey(source: SourceModel, max_context: int, task: str = TASK) -> list[TracedLayer]:
    """Run the model once on a few tokens and note what each layer asks for."""
    model = source.skeleton
    config = _tree_config(model, task, [], ())
    trace = Trace({config.NODES: config.example_nodes(), **_example_inputs([])}, max_context)
    with torch.no_grad(), _markers(source, max_context):
        _run(model.forward, trace, config.NODES)
    num_layers = int(model.config.num_hidden_layers)
    kinds = getattr(model.config, "layer_types", None) or []
    without = {index for index, kind in enumerate(kinds) if kind in _WITHOUT_MEMORY}
    if sorted(trace.layers.keys() | without) != list(range(num_layers)):
        raise UnsupportedArchitectureError(
            f"Only {len(trace.layers)} of the model's {num_layers} layers use the attention interface of transformers."
        )
    layers = [trace.layers.get(index, TracedLayer()) for index in range(num_layers)]
    attention = attention_layers(layers)
    windows = {layer.sliding_window for layer in attention} - {None}
    if len({layer.num_heads for layer in attention}) != 1 or len(windows) > 1:
        raise UnsupportedArchitectureError(
            f"The model's attention layers differ in heads or window {sorted(windows)}, "  # type: ignore[type-var]
            "which a package cannot hold."
        )
    return layers


def attention_layers(layers: Sequence[TracedLayer]) -> list[AttentionLayer]:
    """The layers that attend to earlier tokens."""
    return [layer.attention for layer in layers if layer.attention is not None]


def sliding_window_of(layers: Sequence[TracedLayer]) -> int | None:
    """The window that the windowed layers share, or None."""
    windows = [layer.sliding_window for layer in attention_layers(layers)]
    return next((window for window in windows if window is not None), None)


@contextmanager
def _markers(source: SourceModel, max_context: int, axes: Sequence[int] = ()) -> Iterator[None]:
    """While entered, the model's layers and matrices leave markers. axes: of `plain_positions`."""
    configs: list[Any] = [module.config for module in source.skeleton.modules() if hasattr(module, "config")]
    implementations = [config._attn_implementation for config in configs]
    for config in configs:
        config._attn_implementation = ATTENTION_NAME
    try:
        with (
            marked_parts(source, axes),
            tabled_query_scales(source.skeleton, max_context),
            marked_recurrences(source.skeleton),
            halved_rotary(source.skeleton),
            frequencies_before_switch(source.skeleton),
            latent_caches(source),
            spelt_out_xielu(source.skeleton),
            spelt_out_gemma3n(source.skeleton),
        ):
            yield
    finally:
        for config, implementation in zip(configs, implementations, strict=True):
            config._attn_implementation = implementation


@contextmanager
def marked_parts(source: SourceModel, axes: Sequence[int] = ()) -> Iterator[None]:
    """While entered, the model's matrices leave markers, and its angles are those of texts, or by `axes`."""
    rotaries: list[Any] = [module for module in source.skeleton.modules() if hasattr(module, "rope_type")]
    rope_types = [rotary.rope_type for rotary in rotaries]
    for rotary in rotaries:  # of another type it would look for a switch of its frequencies in every pass
        by_layer = isinstance(rotary.rope_type, dict)
        rotary.rope_type = dict.fromkeys(rotary.rope_type, "default") if by_layer else "default"
    try:
        with named_matrices(source), plain_positions(source.skeleton, axes):
            yield
    finally:
        for rotary, rope_type in zip(rotaries, rope_types, strict=True):
            rotary.rope_type = rope_type


def _run(forward: Callable[..., Any], trace: Trace, nodes: str) -> torch.Tensor:
    """The source's logits, while its layers leave their markers and what they ask for with `trace`.

    nodes: the input that says what nodes are.
    """
    token, positions = current_trace.set(trace), trace.inputs["position_ids"]
    try:
        logits: torch.Tensor = forward(
            **{nodes: trace.inputs[nodes]},
            position_ids=positions if positions.ndim == 2 else positions[0],  # angles read all three themselves
            use_cache=False,  # the markers write the cache
            return_dict=True,
        ).logits
        return logits
    finally:
        current_trace.reset(token)


@contextmanager
def _tree_forward(model: PreTrainedModel, max_context: int, config: TreeConfig) -> Iterator[None]:
    """While entered, the model takes and returns what the graph contract says."""
    source_forward = model.forward
    input_names, output_names = list(config.inputs), list(config.outputs)

    def forward(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        trace = Trace(dict(zip(input_names, inputs, strict=True)), max_context)
        trace.outputs["logits"] = _run(source_forward, trace, config.NODES)
        return tuple(trace.outputs[name] for name in output_names)

    model.forward = forward
    try:
        yield
    finally:
        del model.forward


def _kv_axes(prefix: str, layers: Sequence[TracedLayer]) -> DynamicAxes:
    kept = {index: layer.kept for index, layer in enumerate(layers) if layer.kept.has_cache}
    names = [f"{prefix}_{kind}.{index}" for kind in ("key", "value") for index in kept if kind in kept[index].kept]
    return {name: {0: "B", 2: "S"} for name in names}


def _state_axes(prefix: str, layers: Sequence[TracedLayer]) -> DynamicAxes:
    axes = {"pending": {0: "B", 1: "P"}, "capsule": {0: "B", 1: "N"}}.get(prefix, {0: "B"})
    return {f"{prefix}_{kind}.{index}": axes for index, layer in enumerate(layers) for kind in layer.states}


def _example_inputs(layers: Sequence[TracedLayer]) -> dict[str, torch.Tensor]:
    inputs = {
        "position_ids": torch.arange(_PAST, _PAST + _N).expand(_B, -1).contiguous(),
        "tree_mask": torch.zeros(_B, 1, _N, _PAST + _N),
        "tree_mask_sliding": torch.zeros(_B, 1, _N, _PAST + _N),
        "write_pos": torch.full((_B,), _PAST, dtype=torch.long),
        "logit_rows": torch.zeros(_B, _R, dtype=torch.long),
        "parents": torch.arange(-1, _N - 1).expand(_B, -1).contiguous(),
        "num_kept": torch.ones(_B, dtype=torch.long),
        "num_pending": torch.zeros(_B, dtype=torch.long),
    }
    for index, layer in enumerate(layers):
        for kind in ("key", "value") if layer.attention is not None else ():
            inputs[f"past_{kind}.{index}"] = torch.zeros(_B, layer.kept.num_kv_heads, _S, layer.kept.head_dim)
        for kind, sizes in layer.states.items():
            inputs[f"state_{kind}.{index}"] = torch.zeros(_B, *sizes)
            inputs[f"pending_{kind}.{index}"] = torch.zeros(_B, _P, layer.capsules[kind])
    return inputs
