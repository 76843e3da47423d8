"""Rows of images in a text model that is traced: in the place of embeddings, at positions of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from reader_edge_export.sources.layered_model import layers_of
from reader_edge_export.trace.tracing import current_trace
from reader_edge_runtime.package.package_parts import feature_names

IMAGE_INDEX = "image_index"
NUM_AXES = 3
_NUM_ROWS = 6  # of the traced example

DynamicAxes = dict[str, dict[int, str]]


@dataclass(frozen=True, slots=True)
class ImageRows:
    """What a graph takes of images. width: E, numbers of a row. pad_id: the token whose row such a node has in a table
    of embeddings of each layer, where there is one.

    num_deepstack: see `ImagesPart`.
    axes: of each frequency of the rotary embedding, the axis of positions that it turns by: 0 of time, 1 of rows, 2 of
    columns; () where tokens have one position.
    """

    width: int
    axes: tuple[int, ...] = ()
    pad_id: int = 0
    num_deepstack: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Of the inputs that have rows."""
        return feature_names(self.num_deepstack)

    @property
    def inputs(self) -> DynamicAxes:
        """The graph's, by name: of those that every graph has, the ones that have other axes."""
        positions: DynamicAxes = {"position_ids": {1: "B", 2: "N"}} if self.axes else {}
        return {IMAGE_INDEX: {0: "B", 1: "N"}, **{name: {0: "K"} for name in self.names}, **positions}

    def example(self, position_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Of the same inputs. position_ids: (B, N)."""
        positions = {"position_ids": position_ids.expand(NUM_AXES, -1, -1).contiguous()} if self.axes else {}
        rows = {name: torch.zeros(_NUM_ROWS, self.width) for name in self.names}
        return {IMAGE_INDEX: torch.full_like(position_ids, -1), **rows, **positions}


@contextmanager
def placed_rows(model: PreTrainedModel, rows: ImageRows) -> Iterator[None]:
    """While entered, nodes that have rows of images have these in the place of their embeddings, scale included, and
    what deepstack has for them added behind the first layers.

    Rows are chosen, not added to: texts keep their bits.
    """
    embeddings: Any = model.get_input_embeddings()
    by_layer: Any = getattr(model.base_model, "embed_tokens_per_layer", None)
    features, *deepstack = rows.names
    hooks = [embeddings.register_forward_hook(partial(_placed, features))]
    hooks += [] if by_layer is None else [by_layer.register_forward_pre_hook(partial(_padded, rows.pad_id))]
    for layer, name in zip(layers_of(model), deepstack, strict=False):
        hooks.append(layer.register_forward_hook(partial(_added, name)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _placed(name: str, module: torch.nn.Module, ids: Any, hidden: torch.Tensor) -> torch.Tensor:
    inputs = current_trace.get().inputs
    if IMAGE_INDEX not in inputs:
        return hidden
    index = inputs[IMAGE_INDEX]
    return torch.where(index[..., None] >= 0, inputs[name][index.clamp(min=0)], hidden)


def _added(name: str, module: torch.nn.Module, given: Any, hidden: torch.Tensor) -> torch.Tensor:
    inputs = current_trace.get().inputs
    index = inputs[IMAGE_INDEX]
    return torch.where(index[..., None] >= 0, hidden + inputs[name][index.clamp(min=0)], hidden)


def _padded(pad_id: int, module: torch.nn.Module, given: tuple[torch.Tensor]) -> torch.Tensor:
    index = current_trace.get().inputs[IMAGE_INDEX]
    return torch.where(index >= 0, pad_id, given[0])


def axes_of_frequencies(num_frequencies: int, sections: tuple[int, ...], is_interleaved: bool) -> tuple[int, ...]:
    """Of each frequency (`recomposition_frequencies` of transformers). sections: how many each axis has.

    is_interleaved: axes take turns, as of Qwen 3 and 3.5; else one comes behind the other.
    """
    if not is_interleaved:
        return tuple(axis for axis, size in enumerate(sections) for _ in range(size))
    axes = [0] * num_frequencies
    for axis in range(1, NUM_AXES):
        for place in range(axis, min(NUM_AXES * sections[axis], num_frequencies), NUM_AXES):
            axes[place] = axis
    return tuple(axes)
