"""What all lossy rules share: when one may take another token, what it never takes, and the meter that hears of it."""

from abc import abstractmethod
from collections.abc import Collection, Sequence

import numpy as np

from reader_edge_runtime.acceptance import AcceptanceRule, Choices
from reader_edge_runtime.lossy.meter import Meter


class LossyRule(AcceptanceRule):
    """Of one answer; asked only where the model's own choice was not drafted.

    It takes the best drafted token that the pass reported among the likeliest, unless that lies too many nats below the
    model's choice, ends the answer, or is not allowed there. An end that the model chooses is never put off.
    ends: tokens that end answers. num_taken: tokens taken so far.
    """

    def __init__(self, meter: Meter, ends: Collection[int]) -> None:
        self.name = meter.rule
        self.meter = meter
        self.num_taken = 0
        self._ends = frozenset(ends)

    def next_token(self, choices: Choices, node: int) -> int:
        own = choices.peek(node)
        self.num_taken += 1
        if own in self._ends or choices.tree.child(node, own) >= 0:
            return own
        return self._instead(choices, node, own)

    def report(self, token_ids: Sequence[int]) -> dict[str, object]:
        return self.meter.report(token_ids).fields()

    @abstractmethod
    def most_nats(self, choices: Choices, node: int, rank: int) -> float:
        """How far ln p may fall here; 0 or less takes the model's choice, the `rank`-th of the reported tokens."""

    def _instead(self, choices: Choices, node: int, own: int) -> int:
        children = _children(choices, node)
        token_ids, logits = choices.successors(node)
        ranks = np.flatnonzero(token_ids == own)
        if not children or not len(ranks):  # a grammar's choice may be none of the likeliest
            return own
        rank = int(ranks[0])
        most = self.most_nats(choices, node, rank)
        for token_id, logit in zip(token_ids.tolist(), logits.tolist(), strict=True):
            nats = float(logits[rank]) - logit
            if most <= 0 or not nats <= most:
                return own
            if token_id in children and token_id not in self._ends and choices.allows(token_id):
                self.meter.change(nats)
                return int(token_id)
        return own


def _children(choices: Choices, node: int) -> set[int]:
    tree = choices.tree
    return {tree.token_ids[i] for i in range(node + 1, len(tree)) if tree.parents[i] == node}
