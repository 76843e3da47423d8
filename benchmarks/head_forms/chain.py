"""A chain like EAGLE's: one decoder layer over hidden states and tokens, which then goes on from what it made itself.

EAGLE (arXiv 2401.15077) for the pairs of a state and the token behind it; EAGLE-3 (arXiv 2503.01840, section 3.2) for
features of its own, learned in the very steps in which they are used, with no loss on the target's states.
"""

from collections.abc import Sequence

import torch
from torch import nn

from benchmarks.head_forms.form import best
from benchmarks.head_forms.places import Places
from benchmarks.head_forms.text_attention import Remembered
from benchmarks.head_forms.text_form import TextForm
from reader_edge_export.heads.head_module import HeadModule
from reader_edge_runtime.drafting.sources.head_file import NUM_GUESSES

Tensor = torch.Tensor


class ChainForm(TextForm):
    """Runs once for each token, each time over what it made of the one before."""

    name = "EAGLE's"

    def __init__(self, head: HeadModule) -> None:
        super().__init__(head)
        inner, width = self.sizes.inner, self.width
        self.from_state, self.from_feature = nn.Linear(self.sizes.hidden, width), nn.Linear(width, width)
        self.from_token = nn.Linear(self.sizes.embedded, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, inner), nn.SiLU(), nn.Linear(inner, width))
        self.last_norm, self.out = nn.LayerNorm(width), nn.Linear(width, self.sizes.rank)

    def logits(self, places: Places) -> Tensor:
        entered = self.enter(places.states, places.pending)
        queries, text = self.read(entered)
        feature = self._feature(entered, queries, text)
        found, chain = [self._guess(feature)], list[Remembered]()
        for depth in range(1, self.depth):
            feature = self._follow(feature, places.following[..., depth - 1], text, chain)
            found.append(self._guess(feature))
        return torch.stack(found, 2)

    def forward(self, states: Tensor, pending: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        entered, queries, text = self.last_place(states, pending, keys, values)
        feature = self._feature(entered, queries, text)
        probabilities, numbers = best(self._guess(feature)[:, 0])
        found, chain = [probabilities, numbers], list[Remembered]()
        feature, chosen = feature.expand(NUM_GUESSES, -1, -1), numbers[0, :NUM_GUESSES, None]
        for _ in range(1, self.depth):
            feature = self._follow(feature, chosen, text, chain)
            probabilities, numbers = best(self._guess(feature)[:, 0])
            chosen = numbers[:, :1]
            found += [probabilities, numbers]
        return tuple(found)

    def enter(self, states: Tensor, pending: Tensor) -> Tensor:
        entered: Tensor = self.from_state(self.known(states)) + self.from_token(self.embedding[pending])
        return entered

    def _follow(self, feature: Tensor, tokens: Tensor, text: Remembered, chain: list[Remembered]) -> Tensor:
        """The feature behind a guess; the chain grows by the guess."""
        entered = self.from_feature(feature) + self.from_token(self.embedding[tokens])
        queries, remembered = self.read(entered)
        chain.append(remembered)
        return self._feature(entered, queries, text, chain)

    def _feature(self, entered: Tensor, queries: Tensor, text: Remembered, chain: Sequence[Remembered] = ()) -> Tensor:
        read = entered + self.attention(queries, text, chain)
        feature: Tensor = self.last_norm(read + self.mlp(read))
        return feature

    def _guess(self, feature: Tensor) -> Tensor:
        logits: Tensor = self.vocabulary(self.out(feature))
        return logits
