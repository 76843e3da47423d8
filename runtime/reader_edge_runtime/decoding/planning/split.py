"""How a step's draft is split into two passes, of which one is sent directly behind the other.

Stages work on the second while later ones have the first. Its answer is waited for where the target goes on from the
first into it, and is of no use else. So it suits nodes that are worth less than what they would take in the first.
"""

from typing import NamedTuple

import numpy as np

from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.draft_tree import DraftTree


class Split(NamedTuple):
    """Nodes of a step's passes, of the best ones of its draft, and what it promises.

    num_second: 0 where one pass goes alone. num_tokens: that the step is expected to emit. seconds: that it takes then.
    """

    num_first: int
    num_second: int
    num_tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Expected tokens a second."""
        return self.num_tokens / self.seconds


def best_splits(
    tree: DraftTree, gains: Float64Array, worked_s: Float64Array, rest_s: float, behind_s: float, num_stages: int
) -> tuple[Split, Split]:
    """The splits of a draft with the most expected tokens a second: of one pass, and of two or one.

    The first pass gets the best nodes, and the second the best that are left. gains: expected tokens that each node
    adds, float64 (N,), 1 for the root. worked_s: seconds in which stages work for a pass of n nodes, float64 (1 + W,),
    W at most those of a pass. rest_s: what a step takes besides, its links above all. behind_s: what it takes more for
    having a second pass, of use or not.
    """
    most, order = len(worked_s) - 1, np.array(tree.best_first())
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    parent_ranks = ranks[np.array(tree.parents)[order]]
    first = np.arange(1, min(len(order), most) + 1)[:, None]  # nodes of the first pass, by row
    second = np.arange(1, len(order) + 1) - first  # of the second, by column: how many nodes there are in all
    is_entry = (parent_ranks < first) & (second > 0)  # nodes by which the target goes on into the second
    entered = (gains[order] * is_entry).cumsum(axis=1)  # how likely it is to
    num_tokens = gains[order].cumsum()
    waits = second_wait(worked_s[first], worked_s[np.clip(second, 1, most)], num_stages)
    seconds = worked_s[first] + rest_s + behind_s * (second > 0) + entered * waits
    rates = np.where((second >= 0) & (second <= most), num_tokens / seconds, 0.0)

    def split(rates: Float64Array) -> Split:
        row, column = np.unravel_index(rates.argmax(), rates.shape)
        return Split(int(row) + 1, int(second[row, column]), float(num_tokens[column]), float(seconds[row, column]))

    return split(np.where(second == 0, rates, 0.0)), split(rates)


def second_wait(first_s: Float64Array, second_s: Float64Array, num_stages: int) -> Float64Array:
    """By how much the answers to second passes are behind the first ones', where stages take equal parts of each.

    A stage begins the second when it is done with the first, or, if that is later, when the one before hands it on.
    """
    behind: Float64Array = np.maximum(second_s / num_stages, second_s - first_s * (num_stages - 1) / num_stages)
    return behind
