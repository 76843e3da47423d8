"""What forms of heads learn from, text by text: its places, and what came up to DEPTH tokens behind the pending one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from reader_edge_export.heads.examples import Int32Array, shares
from reader_edge_export.heads.state_recorder import RecordedAnswer

Tensor = torch.Tensor

DEPTH = 4


@dataclass(frozen=True, slots=True)
class Places:
    """L places of a text, or of N, of which the shorter are filled up with places that count for nothing.

    Tokens are numbers of ids. states: float16 ([N,] L, E), after the token before the pending one. pending: int64
    ([N,] L). following: int64 ([N,] L, DEPTH), the tokens behind it. top: int64 ([N,] L, DEPTH, K), the target's best
    where each of these came, best first; share: float32, their probabilities among themselves, all 0 where the text had
    ended.
    """

    states: Tensor
    pending: Tensor
    following: Tensor
    top: Tensor
    share: Tensor

    def at(self, places: Tensor) -> "Places":
        return Places(*(getattr(self, name)[places] for name in self.__slots__))

    @classmethod
    def side_by_side(cls, texts: Sequence["Places"]) -> "Places":
        """Texts as rows."""
        rows = ([getattr(text, name) for text in texts] for name in cls.__slots__)
        return cls(*(torch.nn.utils.rnn.pad_sequence(each, batch_first=True) for each in rows))

    @classmethod
    def one_by_one(cls, texts: Sequence["Places"]) -> "Places":
        """Every place of texts as a row of its own, without what was before it."""
        return cls(*(torch.cat([getattr(text, name) for text in texts])[:, None] for name in cls.__slots__))


def places_of(answers: Sequence[RecordedAnswer], ids: Int32Array, vocab_size: int) -> list[Places]:
    """Every place of each answer after which the target was heard at least once more; answers without are left out."""
    numbers = np.full(vocab_size, len(ids), np.int64)
    numbers[ids] = np.arange(len(ids))
    return [_places(answer, numbers) for answer in answers if len(answer.states) > 1]


def _places(answer: RecordedAnswer, numbers: npt.NDArray[np.int64]) -> Places:
    count = len(answer.states) - 1

    def ahead(values: npt.NDArray[np.generic], first: int) -> Tensor:
        """Values (L, DEPTH, ...) behind each place; 0 where there are none."""
        filled = np.concatenate([values[first:], np.zeros((DEPTH, *values.shape[1:]), values.dtype)])
        return torch.from_numpy(np.stack([filled[depth : depth + count] for depth in range(DEPTH)], 1))

    tokens = numbers[answer.token_ids]
    pending = torch.from_numpy(tokens[1 : count + 1])
    top, share = ahead(numbers[answer.top_ids], 1), ahead(shares(answer.top_logits), 1)
    return Places(torch.from_numpy(answer.states[:count]), pending, ahead(tokens, 2), top, share)


def batches(texts: Sequence[Places], size: int, are_whole: bool) -> Iterator[Places]:
    """Batches of about `size` places without end, whole texts or single places, each epoch in an order of its own."""
    generator = torch.Generator().manual_seed(0)
    rows = None if are_whole else Places.one_by_one(texts)
    while True:
        if rows is not None:
            order = torch.randperm(len(rows.pending), generator=generator)
            yield from (rows.at(part) for part in order.split(size))
        else:
            yield from _whole([texts[number] for number in torch.randperm(len(texts), generator=generator)], size)


def _whole(texts: Sequence[Places], size: int) -> Iterator[Places]:
    batch: list[Places] = []
    for text in texts:
        batch.append(text)
        if sum(len(each.pending) for each in batch) >= size or text is texts[-1]:
            yield Places.side_by_side(batch)
            batch = []
