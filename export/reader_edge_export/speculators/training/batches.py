"""Training batches of speculators: consecutive positions of texts, the target's states there, and its next tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from reader_edge_export.speculators.training.state_recorder import RecordedAnswer
from reader_edge_runtime.arrays import Array, Float32Array, Int32Array, Int64Array

Tensor = torch.Tensor

DEPTH = 4  # tokens of a chain
ROWS, ROW = 2, 512  # of a step, and places of each where layers attend


@dataclass(frozen=True, slots=True)
class Rows:
    """B rows of N places, with DEPTH more that only tell how texts went on.

    ids: int64 (B, N + DEPTH), the token behind each place. states: float16 (B, N, J * E), of the place itself. top:
    int64 (B, N + DEPTH, K), numbers of the target's best after that token; share: float32, their probabilities among
    themselves, 0 for those that have no number. has_scores: bool (B, N + DEPTH), where the target was scored at all.
    """

    ids: Tensor
    states: Tensor
    top: Tensor
    share: Tensor
    has_scores: Tensor


@dataclass(frozen=True, slots=True)
class _AnswerRows:
    """One answer's n places, as `Rows` has them; its states stay in their file."""

    ids: npt.NDArray[np.int32]
    states: npt.NDArray[np.float16]
    top: Int32Array
    share: Float32Array
    has_scores: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ids)


class Batches:
    """Texts in rows that go on from one text into the next, as long conversations do: so nothing is padded, and the
    network meets places far behind a beginning. Rows of a step lie anywhere in the texts.

    ids: int32, that the network can name, in ascending order. shape: rows of a step, and places of each; None is
    (ROWS, ROW).
    """

    def __init__(
        self,
        answers: Sequence[RecordedAnswer],
        ids: Int32Array,
        vocab_size: int,
        shape: tuple[int, int] | None = None,
    ) -> None:
        self._num_rows, row = shape or (ROWS, ROW)
        numbers = np.full(vocab_size, -1, np.int32)
        numbers[ids] = np.arange(len(ids))
        self._texts = [_text_of(answer, numbers) for answer in answers]
        self._sizes = np.array([len(text) for text in self._texts])
        self.num_places = int(self._sizes.sum())
        num_whole = max(self.num_places - DEPTH, 0)
        self.steps_an_epoch = max(1, num_whole // (self._num_rows * row))
        self._row = min(row, num_whole // self._num_rows)

    def at(self, step: int) -> Rows:
        """The rows of a step: every epoch sees each place once, its texts and rows in an order of their own."""
        epoch, number = divmod(step, self.steps_an_epoch)
        random = np.random.default_rng(epoch)
        order = random.permutation(len(self._texts))
        ends = self._sizes[order].cumsum()
        firsts = random.permutation(self.steps_an_epoch * self._num_rows) * self._row
        firsts = firsts[number * self._num_rows : (number + 1) * self._num_rows]

        def rows(name: str, width: int) -> Tensor:
            return torch.from_numpy(np.stack([self._joined(name, order, ends, int(first), width) for first in firsts]))

        ahead = self._row + DEPTH
        return Rows(
            rows("ids", ahead).long(),
            rows("states", self._row),
            rows("top", ahead).long(),
            rows("share", ahead),
            rows("has_scores", ahead),
        )

    def _joined(self, name: str, order: Int64Array, ends: Int64Array, first: int, width: int) -> Array:
        """What so many places from one on have, of texts in an order. ends: of each text, in places."""
        number = int(np.searchsorted(ends, first, "right"))
        skipped = first - int(ends[number] - self._sizes[order[number]])
        parts: list[Array] = []
        while width > 0:
            parts.append(getattr(self._texts[order[number]], name)[skipped : skipped + width])
            width -= len(parts[-1])
            number, skipped = number + 1, 0
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _text_of(answer: RecordedAnswer, numbers: Int32Array) -> _AnswerRows:
    """numbers: int32 (V,), of the ids that the network can name, -1 of others."""
    num_answered, num_top = answer.top_ids.shape
    num_places = len(answer.states)
    num_context = num_places - num_answered
    text = np.concatenate([answer.prompt_ids[len(answer.prompt_ids) - num_context :], answer.token_ids])
    top, share = np.zeros((num_places, num_top), np.int32), np.zeros((num_places, num_top), np.float32)
    # A place tells of the token behind it. Chains that began in the text before would still be there in the first ones.
    first = max(num_context - 1, DEPTH - 1)
    known = answer.top_ids[first + 1 - num_context :]
    top[first : num_places - 1] = np.maximum(numbers[known], 0)
    share[first : num_places - 1] = shares(answer.top_logits[first + 1 - num_context :]) * (numbers[known] >= 0)
    has_scores = np.zeros(num_places, np.bool_)
    has_scores[first : num_places - 1] = True
    return _AnswerRows(text[1:].astype(np.int32), answer.states, top, share, has_scores)


def frequent_ids(answers: Sequence[RecordedAnswer], vocab_size: int, most: int) -> Int32Array:
    """The ids that the target named most often, in ascending order; fewer than `most` where it named fewer."""
    weights = np.zeros(vocab_size)
    for answer in answers:
        np.add.at(weights, answer.top_ids, shares(answer.top_logits))
    best = np.argsort(-weights, kind="stable")[:most]
    return np.sort(best[weights[best] > 0]).astype(np.int32)


def shares(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """What the target's best successors have of its belief, among themselves: softmax over the last axis."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    among: npt.NDArray[np.float32] = powers / powers.sum(-1, keepdims=True)
    return among
