"""Trace a model so that its ONNX graph follows the contract of `reader_edge_runtime.package.manifest`.

Optimum's TasksManager says which model types can do the task, and by which config class their graphs are described.
A survey pass first asks every attention layer what it wants; the trace then has one marker op per layer.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from optimum.exporters.base import ExporterConfig
from optimum.exporters.tasks import TasksManager
from optimum.utils import NormalizedTextConfig
from transformers import PretrainedConfig, PreTrainedModel

from reader_edge_export.architectures import SUPPORTED
from reader_edge_export.query_scale import tabled_query_scales
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.tracing import (
    ATTENTION_NAME,
    AttentionLayer,
    Trace,
    current_trace,
    named_matrices,
)
from reader_edge_runtime.errors import UnsupportedArchitectureError

TRACE_OPSET = 18  # the newest that the TorchScript exporter and all lowerings share
EXPORTER, TASK = "reader-edge", "text-generation"  # by Optimum's names

# Sizes of the traced example; all differ, so that a size fixed by mistake breaks the parity checks.
_B, _N, _R, _PAST, _S = 2, 3, 2, 5, 16

DynamicAxes = dict[str, dict[int, str]]


class TreeConfig(ExporterConfig):  # type: ignore[misc]
    """Inputs and outputs of the graph contract. layers: what the model's attention layers ask for."""

    NORMALIZED_CONFIG_CLASS = NormalizedTextConfig

    def __init__(self, config: PretrainedConfig, task: str, layers: Sequence[AttentionLayer]) -> None:
        super().__init__(config, task)
        self._layers = layers

    @property
    def inputs(self) -> DynamicAxes:
        axes = {
            "input_ids": {0: "B", 1: "N"},
            "position_ids": {0: "B", 1: "N"},
            "tree_mask": {0: "B", 2: "N", 3: "M"},
            "write_pos": {0: "B"},
            "logit_rows": {0: "B", 1: "R"},
            **_kv_axes("past", len(self._layers)),
        }
        if sliding_window_of(self._layers) is not None:
            axes["tree_mask_sliding"] = axes["tree_mask"]
        return axes

    @property
    def outputs(self) -> DynamicAxes:
        return {"logits": {0: "B", 1: "R"}, **_kv_axes("present", len(self._layers))}

    def generate_dummy_inputs(self, framework: str = "pt") -> dict[str, Any]:
        return _example_inputs(self._layers)


for _model_type in SUPPORTED:
    TasksManager.create_register(EXPORTER)(_model_type, TASK)(TreeConfig)


def trace_model(source: SourceModel, max_context: int, graph: Path) -> list[AttentionLayer]:
    """Write the model with its markers to `graph`, and return what each layer asks for.

    Raises UnsupportedArchitectureError where the graph would not be the model.
    """
    model, layers = source.skeleton, survey(source, max_context)
    constructor = TasksManager.get_exporter_config_constructor(
        EXPORTER, model_type=model.config.model_type, task=TASK, library_name="transformers"
    )
    config: TreeConfig = constructor(model.config, layers=layers)
    with torch.no_grad(), _markers(source, max_context), _tree_forward(model, max_context):
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


def survey(source: SourceModel, max_context: int) -> list[AttentionLayer]:
    """Run the model once on a few tokens and note what each attention layer asks for."""
    model = source.skeleton
    example = _example_inputs([])
    trace = Trace(example["tree_mask"], None, example["write_pos"], example["logit_rows"], (), max_context)
    with torch.no_grad(), _markers(source, max_context):
        _run(model.forward, trace, example["input_ids"], example["position_ids"])
    num_layers = int(model.config.num_hidden_layers)
    if sorted(trace.layers) != list(range(num_layers)):
        raise UnsupportedArchitectureError(
            f"Only {len(trace.layers)} of the model's {num_layers} layers use the attention interface of transformers."
        )
    layers = [trace.layers[index] for index in range(num_layers)]
    sizes = {(layer.num_heads, layer.num_kv_heads, layer.head_dim) for layer in layers}
    windows = {layer.sliding_window for layer in layers} - {None}
    if len(sizes) > 1 or len(windows) > 1:
        raise UnsupportedArchitectureError(
            f"The model's attention layers differ in size {sorted(sizes)} or window {sorted(windows)}, "  # type: ignore[type-var]
            "which a package cannot hold."
        )
    return layers


def sliding_window_of(layers: Sequence[AttentionLayer]) -> int | None:
    """The window that the windowed layers share, or None."""
    return next((layer.sliding_window for layer in layers if layer.sliding_window is not None), None)


@contextmanager
def _markers(source: SourceModel, max_context: int) -> Iterator[None]:
    """While entered, the model's layers and matrices leave markers."""
    configs: list[Any] = [module.config for module in source.skeleton.modules() if hasattr(module, "config")]
    implementations = [config._attn_implementation for config in configs]
    for config in configs:
        config._attn_implementation = ATTENTION_NAME
    rotaries: list[Any] = [module for module in source.skeleton.modules() if hasattr(module, "rope_type")]
    rope_types = [rotary.rope_type for rotary in rotaries]
    for rotary in rotaries:  # of another type it would look for a switch of its frequencies in every pass
        by_layer = isinstance(rotary.rope_type, dict)
        rotary.rope_type = dict.fromkeys(rotary.rope_type, "default") if by_layer else "default"
    try:
        with named_matrices(source), tabled_query_scales(source.skeleton, max_context):
            yield
    finally:
        for rotary, rope_type in zip(rotaries, rope_types, strict=True):
            rotary.rope_type = rope_type
        for config, implementation in zip(configs, implementations, strict=True):
            config._attn_implementation = implementation


def _run(forward: Callable[..., Any], trace: Trace, input_ids: torch.Tensor, position_ids: torch.Tensor) -> Any:
    """The source's logits, while its layers leave their markers and what they ask for with `trace`."""
    token = current_trace.set(trace)
    try:
        return forward(
            input_ids=input_ids,
            position_ids=position_ids,
            attention_mask=trace.tree_mask,
            use_cache=False,  # the markers write the cache
            return_dict=True,
        ).logits
    finally:
        current_trace.reset(token)


@contextmanager
def _tree_forward(model: PreTrainedModel, max_context: int) -> Iterator[None]:
    """While entered, the model takes and returns what the graph contract says."""
    source_forward = model.forward

    def forward(
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        tree_mask: torch.Tensor,
        write_pos: torch.Tensor,
        logit_rows: torch.Tensor,
        past_key: list[torch.Tensor],
        past_value: list[torch.Tensor],
        tree_mask_sliding: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        past = list(zip(past_key, past_value, strict=True))
        trace = Trace(tree_mask, tree_mask_sliding, write_pos, logit_rows, past, max_context)
        logits = _run(source_forward, trace, input_ids, position_ids)
        present_key, present_value = zip(*(trace.present[layer] for layer in range(len(past))), strict=True)
        return logits, *present_key, *present_value

    model.forward = forward
    try:
        yield
    finally:
        del model.forward


def _kv_axes(prefix: str, num_layers: int) -> DynamicAxes:
    names = [f"{prefix}_{kind}.{layer}" for kind in ("key", "value") for layer in range(num_layers)]
    return {name: {0: "B", 2: "S"} for name in names}


def _example_inputs(layers: Sequence[AttentionLayer]) -> dict[str, Any]:
    def buffers() -> list[torch.Tensor]:
        return [torch.zeros(_B, layer.num_kv_heads, _S, layer.head_dim) for layer in layers]

    inputs: dict[str, Any] = {  # in the order of the traced signature
        "input_ids": torch.ones(_B, _N, dtype=torch.long),
        "position_ids": torch.arange(_PAST, _PAST + _N).expand(_B, -1).contiguous(),
        "tree_mask": torch.zeros(_B, 1, _N, _PAST + _N),
        "write_pos": torch.full((_B,), _PAST, dtype=torch.long),
        "logit_rows": torch.zeros(_B, _R, dtype=torch.long),
        "past_key": buffers(),
        "past_value": buffers(),
    }
    if sliding_window_of(layers) is not None:
        inputs["tree_mask_sliding"] = inputs["tree_mask"].clone()
    return inputs
