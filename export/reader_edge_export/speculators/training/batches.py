"""What a speculator learns from: rows of places of texts that follow each other, with states and what came of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from reader_edge_export.speculators.training.state_recorder import RecordedAnswer
from reader_edge_runtime.arrays import Float32Array, Int32Array

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
class _Text:
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
    network meets places far behind a beginning.

    ids: int32, that the network can name, in ascending order. row: places of each; 0 is ROW.
    """

    def __init__(self, answers: Sequence[RecordedAnswer], ids: Int32Array, vocab_size: int, row: int = 0) -> None:
        self._row = row or ROW
        numbers = np.full(vocab_size, -1, np.int32)
        numbers[ids] = np.arange(len(ids))
        self._texts = [_text_of(answer, numbers) for answer in answers]
        self._sizes = np.array([len(text) for text in self._texts])
        self.num_places = int(self._sizes.sum())
        self.steps_an_epoch = max(1, (self.num_places - DEPTH) // (ROWS * self._row))

    def at(self, step: int) -> Rows:
        """The rows of a step: every epoch sees each place once, its texts in an order of their own."""
        epoch, place = divmod(step, self.steps_an_epoch)
        order = np.random.default_rng(epoch).permutation(len(self._texts))
        ends = self._sizes[order].cumsum()
        first = place * ROWS * self._row
        last = min(first + ROWS * self._row + DEPTH, self.num_places)
        length = (last - first - DEPTH) // ROWS
        chosen = range(int(np.searchsorted(ends, first, "right")), int(np.searchsorted(ends, last - 1, "right")) + 1)
        skipped = first - int(ends[chosen.start] - self._sizes[order[chosen.start]])

        def joined(name: str) -> Tensor:
            parts = [getattr(self._texts[order[number]], name) for number in chosen]
            return torch.from_numpy(np.concatenate(parts)[skipped : skipped + last - first])

        def rows(flat: Tensor, width: int) -> Tensor:
            return torch.stack([flat[row * length : row * length + width] for row in range(ROWS)])

        ahead = length + DEPTH
        return Rows(
            rows(joined("ids").long(), ahead),
            rows(joined("states"), length),
            rows(joined("top").long(), ahead),
            rows(joined("share"), ahead),
            rows(joined("has_scores"), ahead),
        )


def _text_of(answer: RecordedAnswer, numbers: Int32Array) -> _Text:
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
    return _Text(text[1:].astype(np.int32), answer.states, top, share, has_scores)


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
