"""States of a model between its layers, as outputs of the graph: what trained speculators read."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from reader_edge_export.sources.layered_model import layers_of
from reader_edge_export.trace.markers import LAYER_STATE
from reader_edge_export.trace.tracing import current_trace


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
                hook: Any = layers[-1].register_forward_hook(partial(_note_output, number))
            else:
                module = layers[number] if number < len(layers) else model.get_output_embeddings()
                assert isinstance(module, torch.nn.Module)
                hook = module.register_forward_pre_hook(partial(_note_input, number), with_kwargs=True)
            hooks.callback(hook.remove)
        yield


def _note_input(number: int, module: torch.nn.Module, inputs: Any, named: dict[str, Any]) -> None:
    current_trace.get().outputs[state_name(number)] = inputs[0] if inputs else named["hidden_states"]


def _note_output(number: int, module: torch.nn.Module, inputs: Any, output: Any) -> None:
    current_trace.get().outputs[state_name(number)] = output[0] if isinstance(output, tuple) else output
