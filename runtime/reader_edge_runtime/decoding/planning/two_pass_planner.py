"""Planner for models behind network links: where it pays, a step's less likely nodes go in a second pass at once."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.decoding.planning.planner import Draft, Planner, StepPlan, node_gains
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.verification import Verification
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.measuring.pass_cost import MAX_WIDTH
from reader_edge_runtime.stats import StepTimes
from reader_edge_runtime.target import PipelinedTarget


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


_MARGIN = 1.02  # by how much two passes must promise to beat one, since estimates err
_ONE_EVERY = 32  # drafted steps after which one has a single pass, so that the times of those stay known
# Of what second passes are in the way: weight of the newest step, which counts as this share of its time at most, and
# what each step without one leaves of it, as boxes may have become free.
_MEMORY, _MOST_SHARE, _LEFT = 0.1, 0.25, 0.999


class TwoPassPlanner(Planner):
    """Plans what `Planner` does, and for a request that steps alone second passes besides. way: where passes go.

    With other requests in flight a second pass would keep theirs waiting, so then none is planned. Boxes that share
    processors, or have other work, are slower at the first pass while they have the second: what that takes is learned.
    """

    def __init__(self, way: PipelinedTarget, max_width: int = MAX_WIDTH) -> None:
        super().__init__(max_width)
        self._way = way
        self._behind_s = 0.0  # that a step takes more for having a second pass; below 0 by chance
        self._num_in_two = 0

    @property
    def max_nodes(self) -> int:
        return 2 * self.times.max_width

    def plan(
        self, requests: Sequence[Request], pasts: Sequence[int], room: int, draft: Draft, given_room: int | None = None
    ) -> StepPlan:
        plan = super().plan(requests, pasts, room, draft, given_room)
        if not plan.drafts or len(requests) > 1 or not self.is_alone or not self.times.is_measured:
            return plan
        if self._num_in_two < _ONE_EVERY:
            in_two = self._split(plan, requests[0], plan.drafts[0])
            plan = in_two if in_two.width < room else plan  # as a second pass of one node may be padded to two
        self.max_drafted = min(max(2 * plan.width, self.max_drafted), self.max_nodes)
        return plan

    def settle(
        self,
        plan: StepPlan,
        requests: Sequence[Request],
        times: StepTimes,
        accepted: Sequence[Verification | None],
        proposal_s: float = 0.0,
    ) -> None:
        super().settle(plan, requests, times, accepted, proposal_s)
        if not plan.num_first:
            self._num_in_two = 0 if plan.drafts else self._num_in_two
            self._behind_s *= _LEFT
        elif (walked := accepted[0]) is not None:
            self._num_in_two += 1
            worked_s, links_s = self._times(plan.pasts)
            first_s, second_s = worked_s[plan.num_first], worked_s[plan.width - plan.num_first]
            expected_s = first_s + links_s
            if max(walked.path) >= plan.num_first:
                expected_s += second_wait(first_s, second_s, self._way.num_stages)
            more_s = min(times.forward_s + walked.waited_s - expected_s, _MOST_SHARE * expected_s)
            self._behind_s += _MEMORY * (more_s - self._behind_s)

    def _split(self, plan: StepPlan, request: Request, draft: DraftTree) -> StepPlan:
        (worked_s, links_s), gains = self._times(plan.pasts), np.array([1.0, *node_gains(request, draft)])
        pass_s, beside_s = float(worked_s[1]) + links_s, self._plain_s(1) + self._draft_s(1)
        one, best = best_splits(
            draft, gains, worked_s, links_s + beside_s, max(self._behind_s, 0.0), self._way.num_stages
        )
        if best.rate < _MARGIN * one.rate:
            return plan
        order, num_nodes = draft.best_first(), best.num_first + best.num_second
        first, second = order[: best.num_first], order[best.num_first : num_nodes]
        saved_s = (best.num_tokens - 1) * (pass_s + self._plain_s(1)) - (best.seconds - beside_s - pass_s)
        return plan._replace(
            trees=[draft.of_nodes([*sorted(first), *sorted(second)])],
            saved_s=[saved_s],
            num_first=best.num_first,
        )

    def _times(self, pasts: Sequence[int]) -> tuple[Float64Array, float]:
        """Seconds in which boxes work for a pass of n nodes, float64 (1 + W,), and those in which none does."""
        times = np.array(self.times.seconds(pasts))
        links_s = min(self._way.links_s, float(times[1]))
        return np.maximum(times - links_s, 0.0), links_s
