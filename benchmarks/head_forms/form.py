"""What every form of head has: the tokens' numbers and the rows of the vocabulary that HeadModule begins with."""

from abc import ABC, abstractmethod

import torch
from torch import nn

from benchmarks.head_forms.places import DEPTH, Places
from reader_edge_export.heads.head_module import HeadModule
from reader_edge_runtime.drafting.sources.head_file import NUM_FIRST

Tensor = torch.Tensor


class Form(nn.Module, ABC):
    """A network that guesses `depth` tokens. Called as a module it makes one step of decoding, as that is timed.

    reads_text: whether it looks at earlier places of its text, too.
    """

    name: str
    reads_text = True
    depth = DEPTH

    def __init__(self, head: HeadModule) -> None:
        super().__init__()
        self.sizes = head.sizes
        self.mean, self.scale = nn.Buffer(head.mean), nn.Buffer(head.scale)
        self.embedding, self.vocabulary = head.embedding, head.vocabulary

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @abstractmethod
    def logits(self, places: Places) -> Tensor:
        """(N, L, depth, ids + 1) of each token behind the pending one, where those before it came as in the text."""

    @abstractmethod
    def remember(self, states: Tensor, pending: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (1, H, L, D) of a text's L places, as a step gets them; of no heads where it reads none."""

    @abstractmethod
    def forward(self, states: Tensor, pending: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """A step's best guesses, depth after depth: probabilities and numbers (B, NUM_FIRST).

        Behind the first, each of the first NUM_GUESSES is guessed on from, and then the best: B is 1, then
        NUM_GUESSES. states: float32 (1, n, E) of the places that are new, pending: int64 (1, n); keys, values: of those
        before them.
        """

    def known(self, states: Tensor) -> Tensor:
        """Hidden states, brought to mean 0 and variance 1."""
        scaled: Tensor = (states.float() - self.mean) / self.scale
        return scaled


def best(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities and numbers of the likeliest tokens, best first."""
    probabilities, numbers = torch.softmax(logits, -1).topk(NUM_FIRST)
    return probabilities, numbers
