"""What a speculator reads of its target over texts: states between layers, from the source run a layer at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from reader_edge_export.sources.layered_model import LayeredModel


@dataclass(frozen=True, slots=True)
class TextStates:
    """Of a text's tokens.

    states: float32 (1, N, J * E), joined. best: int64 (N,), what the target says follows each.
    """

    token_ids: list[int]
    states: torch.Tensor
    best: torch.Tensor


def states_of(model: LayeredModel, sequences: Sequence[list[int]], state_ids: Sequence[int]) -> list[TextStates]:
    """Of each text, the states with these numbers, see `Manifest.state_ids`. Raises ExportError where not finite."""
    texts, num_layers = model.begin(sequences), len(model.layers)
    found: dict[int, list[torch.Tensor]] = {}
    for index in model.walk(texts):
        if index in state_ids:
            found[index] = [text.hidden for text in texts]
    found[num_layers] = [text.hidden for text in texts]
    with model.source.filled([model.head]), torch.no_grad():
        found[num_layers + 1] = [model.head_inputs(text) for text in texts]
        best = [model.head_logits(text).argmax(-1) for text in texts]
    joined = [torch.cat(states, -1) for states in zip(*(found[number] for number in state_ids), strict=True)]
    return [TextStates(*each) for each in zip(sequences, joined, best, strict=True)]
