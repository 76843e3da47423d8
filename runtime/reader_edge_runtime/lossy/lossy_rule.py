"""What all lossy rules share: when one may take another token, what it never takes, and the meter that hears of it."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from reader_edge_runtime.acceptance import AcceptanceRule, Choices
from reader_edge_runtime.lossy.meter import Meter


class Mismatch(NamedTuple):
    """A token, and the model's own choice. rank, own_rank: of both among the reported tokens. nats: by which the token
    is less likely. child: its node; -1 for one that was not drafted.
    """

    token_id: int
    own: int
    rank: int
    own_rank: int
    nats: float
    child: int


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
        if choices.tree.child(node, own) >= 0:
            return own
        found = mismatch(choices, node, own, self._ends, self.most_nats)
        if found is None or not self.takes(choices, node, found):
            return own
        self.meter.change(found.nats)
        return found.token_id

    def report(self, token_ids: Sequence[int]) -> dict[str, object]:
        return self.meter.report(token_ids).fields()

    @abstractmethod
    def most_nats(self, choices: Choices, node: int, rank: int) -> float:
        """How far ln p may fall here; 0 or less takes the model's choice, the `rank`-th of the reported tokens."""

    def takes(self, choices: Choices, node: int, found: Mismatch) -> bool:
        """Whether a token that lies within these nats stands in place of the model's choice."""
        return True


def mismatch(
    choices: Choices,
    node: int,
    own: int,
    ends: Collection[int],
    most_nats: Callable[[Choices, int, int], float],
    is_drafted: bool = True,
) -> Mismatch | None:
    """The likeliest token but the model's `own` that may stand in its place, where that ends no answer; None for none.

    most_nats: of the node, and the rank of `own`, how far below it the token may lie. is_drafted: whether it has to be.
    """
    tree = choices.tree
    children = {tree.token_ids[i]: i for i in range(node + 1, len(tree)) if tree.parents[i] == node}
    token_ids, logits = choices.successors(node)
    ranks = np.flatnonzero(token_ids == own)
    if own in ends or not len(ranks) or not (children or not is_drafted):  # a grammar's choice may be unlikely
        return None
    own_rank = int(ranks[0])
    most = most_nats(choices, node, own_rank)
    for rank, (token_id, logit) in enumerate(zip(token_ids.tolist(), logits.tolist(), strict=True)):
        nats = float(logits[own_rank]) - logit
        if most <= 0 or not nats <= most:
            return None
        is_open = token_id in children or not is_drafted
        if is_open and token_id != own and token_id not in ends and choices.allows(token_id):
            return Mismatch(int(token_id), own, rank, own_rank, nats, children.get(token_id, -1))
    return None
