"""What a head learns from, as tensors: states and tokens, and what the target thought next."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from reader_edge_export.heads.state_recorder import RecordedAnswer
from reader_edge_runtime.arrays import Int32Array

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Examples:
    """N places of texts. Tokens are numbers of ids.

    states: float16 (N, E), after the token before the pending one. pending, guess: int64 (N,), the pending token and
    the one that followed. top, next_top: int32 (N, K), the target's best after each of these, best first; share,
    next_share: float32 (N, K), their probabilities among themselves, all 0 where the text had ended.
    """

    states: Tensor
    pending: Tensor
    guess: Tensor
    top: Tensor
    share: Tensor
    next_top: Tensor
    next_share: Tensor

    def __len__(self) -> int:
        return len(self.pending)

    def at(self, places: Tensor) -> "Examples":
        return Examples(*(getattr(self, name)[places] for name in self.__slots__))


def frequent_ids(answers: Sequence[RecordedAnswer], vocab_size: int, most: int) -> Int32Array:
    """The ids that the target named most often, in ascending order; fewer than `most` where it named fewer."""
    weights = np.zeros(vocab_size)
    for answer in answers:
        np.add.at(weights, answer.top_ids, shares(answer.top_logits))
    best = np.argsort(-weights, kind="stable")[:most]
    return np.sort(best[weights[best] > 0]).astype(np.int32)


def examples_of(answers: Sequence[RecordedAnswer], ids: Int32Array, vocab_size: int) -> Examples:
    """Every place of every answer after which the target was heard at least once more."""
    numbers = np.full(vocab_size, len(ids), np.int32)
    numbers[ids] = np.arange(len(ids))
    parts: list[list[npt.NDArray[np.generic]]] = [[] for _ in Examples.__slots__]
    for answer in answers:
        if (count := len(answer.states) - 1) < 1:
            continue
        tokens, top, share = numbers[answer.token_ids], numbers[answer.top_ids], shares(answer.top_logits)
        after_last = np.zeros((1, top.shape[1]))
        values: tuple[npt.NDArray[np.generic], ...] = (
            answer.states[:count],
            tokens[1 : count + 1].astype(np.int64),
            tokens[2 : count + 2].astype(np.int64),
            top[1:],
            share[1:],
            np.concatenate([top[2:], after_last.astype(np.int32)]),
            np.concatenate([share[2:], after_last.astype(np.float32)]),
        )
        for part, value in zip(parts, values, strict=True):
            part.append(value)
    return Examples(*(torch.from_numpy(np.concatenate(part)) for part in parts))


def shares(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """What the target's best successors have of its belief, among themselves: softmax over the last axis."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    among: npt.NDArray[np.float32] = powers / powers.sum(-1, keepdims=True)
    return among
