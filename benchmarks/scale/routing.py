"""Which shards to ask: those whose subjects use the words of a text. How often is the answer among the first k?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.scale.lookups import Question, Shards
from reader_edge_runtime.arrays import Float64Array


class Router:
    """Ranks shards for a text by how likely each shard's subject says its tokens (naive Bayes).

    It holds two bytes a shard and token of the vocabulary.
    """

    def __init__(self, counts: Sequence[Float64Array]) -> None:
        """counts: of each shard's tokens, float64 (V,)."""
        rates = np.stack([(each + 0.5) / (each.sum() + 0.5 * len(each)) for each in counts])
        self._logs = np.log(rates).astype(np.float16)  # (shards, V)

    @classmethod
    def read(cls, folder: Path, shards: Shards) -> "Router":
        """By the profiles that were written with the shards."""
        profiles = np.load(folder / "profiles.npz")
        return cls([profiles[path.stem].astype(np.float64) for path in shards.paths])

    @property
    def num_bytes(self) -> int:
        return int(self._logs.nbytes)

    def ranked(self, text: Sequence[int]) -> list[int]:
        """Shards, the likeliest first."""
        likely = self._logs[:, list(text)].astype(np.float64).sum(axis=1)
        ranked: list[int] = np.argsort(-likely, kind="stable").tolist()
        return ranked


@dataclass(frozen=True, slots=True)
class Recall:
    """Of all questions, by the number k of shards asked, from 1 on. longest: those whose longest match over all shards
    is as long among the first k. right: those whose next token the longest match's most frequent successor is."""

    longest: list[float]
    right: list[float]


def recall(shards: Shards, router: Router, drawn: Sequence[Question]) -> Recall:
    """What asking the first k shards finds of what asking all does."""
    num_shards = len(shards.paths)
    longest, right = np.zeros(num_shards), np.zeros(num_shards)
    for question in drawn:
        ranked = router.ranked(question.text)
        matches = [shards.find(shard, question.text) for shard in ranked]
        lengths = np.array([match.length for match in matches])
        best = np.maximum.accumulate(lengths)
        longest += best == best[-1]
        first = [int(np.argmax(lengths[: k + 1])) for k in range(num_shards)]
        right += [shards.successor(ranked[i], matches[i]) == question.next_id for i in first]
    return Recall((longest / len(drawn)).tolist(), (right / len(drawn)).tolist())
