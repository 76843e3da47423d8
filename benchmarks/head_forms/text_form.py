"""What forms share that read their text by one layer of attention."""

from abc import abstractmethod

import torch
from torch import nn

from benchmarks.head_forms.form import Form
from benchmarks.head_forms.text_attention import Remembered, TextAttention
from reader_edge_export.heads.head_module import HeadModule

Tensor = torch.Tensor


class TextForm(Form):
    """width: of the layer, half of the MLP's, so that a step is about as dear."""

    def __init__(self, head: HeadModule) -> None:
        super().__init__(head)
        self.width = self.sizes.inner // 2
        self.attention, self.first_norm = TextAttention(self.width), nn.LayerNorm(self.width)

    @abstractmethod
    def enter(self, states: Tensor, pending: Tensor) -> Tensor:
        """What the layer gets of places, (N, L, width)."""

    def read(self, entered: Tensor) -> tuple[Tensor, Remembered]:
        """Queries of places, and their keys and values."""
        queries, keys, values = self.attention.split(self.first_norm(entered))
        return queries, (keys, values)

    def remember(self, states: Tensor, pending: Tensor) -> tuple[Tensor, Tensor]:
        return self.read(self.enter(states, pending))[1]

    def last_place(
        self, states: Tensor, pending: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Remembered]:
        """Of the last new place what entered and its queries, and keys and values of the text up to it."""
        entered = self.enter(states, pending)
        queries, (new_keys, new_values) = self.read(entered)
        text = torch.cat([keys, new_keys], 2), torch.cat([values, new_values], 2)
        return entered[:, -1:], queries[:, :, -1:], text
