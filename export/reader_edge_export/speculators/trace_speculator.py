"""Trace a speculator so that its graph follows the contract of `reader_edge_runtime.package.speculator_part`."""

from pathlib import Path
from typing import Any, cast

import torch

from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.trace.tracing import AttentionLayer, Trace, current_trace, tree_attention
from reader_edge_export.trace.tree_config import TRACE_OPSET, DynamicAxes, marked_parts
from reader_edge_runtime.errors import UnsupportedArchitectureError

# Sizes of the traced example; all differ, so that a size fixed by mistake breaks the checks.
_B, _N1, _N2, _R, _PAST, _S = 2, 4, 3, 2, 5, 16
_NO_WINDOW = 1  # windows are refused before


def trace_speculator(source: SourceModel, target_size: int, graph: Path) -> list[AttentionLayer]:
    """Write a speculator, a `SpeculatorModule`, with its markers to `graph`, and return what its layers ask for.

    target_size: numbers of a node's states of the target, J * E_target.
    """
    config: Any = source.skeleton.config
    example = _example_inputs(config, target_size)
    inputs: DynamicAxes = {
        "input_ids": {0: "B", 1: "N"},
        "position_ids": {0: "B", 1: "N"},
        "tree_mask": {0: "B", 2: "N", 3: "M"},
        "write_pos": {0: "B"},
        "logit_rows": {0: "B", 1: "R"},
        "target_states": {0: "B", 1: "N1"},
        "own_states": {0: "B", 1: "N2"},
        **_kv_axes("past", config.num_hidden_layers),
    }
    outputs: DynamicAxes = {
        "logits": {0: "B", 1: "R"},
        "next_states": {0: "B", 1: "N"},
        **_kv_axes("present", config.num_hidden_layers),
    }
    traced = _Traced(cast(SpeculatorModule, source.skeleton), list(inputs), list(outputs))
    with torch.no_grad(), marked_parts(source):
        torch.onnx.export(
            traced,
            tuple(example[name] for name in inputs),
            graph,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes=inputs | outputs,
            opset_version=TRACE_OPSET,
            dynamo=False,  # the markers are TorchScript's
        )
    layers = [traced.layers.get(index) for index in range(config.num_hidden_layers)]
    if any(not isinstance(layer, AttentionLayer) for layer in layers):
        raise UnsupportedArchitectureError("The speculator's layers do not all attend to earlier tokens.")
    return cast(list[AttentionLayer], layers)


class _Traced(torch.nn.Module):
    """The graph contract around a speculator. layers: what they asked for, once it has run."""

    def __init__(self, module: SpeculatorModule, input_names: list[str], output_names: list[str]) -> None:
        super().__init__()
        self.module = module
        self._names = input_names, output_names
        self.layers: dict[int, Any] = {}

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        input_names, output_names = self._names
        trace = Trace(dict(zip(input_names, inputs, strict=True)), _NO_WINDOW)
        token = current_trace.set(trace)
        try:
            given = (trace.inputs[name] for name in ("input_ids", "position_ids", "target_states", "own_states"))
            heard = self.module(*given, _marked_attention)
            trace.outputs |= {"logits": self.module.lm_head(heard.read), "next_states": heard.next_states}
        finally:
            current_trace.reset(token)
        self.layers = dict(trace.layers)
        return tuple(trace.outputs[name] for name in output_names)


def _marked_attention(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return tree_attention(module, query, key, value, None, module.scaling)[0]


def _kv_axes(prefix: str, num_layers: int) -> DynamicAxes:
    names = (f"{prefix}_{kind}.{index}" for index in range(num_layers) for kind in ("key", "value"))
    return {name: {0: "B", 2: "S"} for name in names}


def _example_inputs(config: Any, target_size: int) -> dict[str, torch.Tensor]:
    num_nodes = _N1 + _N2
    kept = torch.zeros(_B, config.num_key_value_heads, _S, config.head_dim)
    return {
        "input_ids": torch.ones(_B, num_nodes, dtype=torch.long),
        "position_ids": torch.arange(_PAST, _PAST + num_nodes).expand(_B, -1).contiguous(),
        "tree_mask": torch.zeros(_B, 1, num_nodes, _PAST + num_nodes),
        "write_pos": torch.full((_B,), _PAST, dtype=torch.long),
        "logit_rows": torch.zeros(_B, _R, dtype=torch.long),
        "target_states": torch.zeros(_B, _N1, target_size),
        "own_states": torch.zeros(_B, _N2, config.hidden_size),
        **{name: kept for name in _kv_axes("past", config.num_hidden_layers)},
    }
