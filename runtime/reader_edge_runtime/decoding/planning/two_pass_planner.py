"""A planner for targets over links: where it pays, a step's less likely nodes go in a second pass behind the first."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.decoding.planning.planner import Draft, Planner, StepPlan, node_gains
from reader_edge_runtime.decoding.planning.split import best_splits, second_wait
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.verification import Verification
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.measuring.pass_cost import MAX_WIDTH
from reader_edge_runtime.stats import StepTimes
from reader_edge_runtime.target import TravellingTarget

_MARGIN = 1.02  # by how much two passes must promise to beat one, since estimates err
_ONE_EVERY = 32  # drafted steps after which one has a single pass, so that the times of those stay known
# Of what second passes are in the way: weight of the newest step, which counts as this share of its time at most, and
# what each step without one leaves of it, as boxes may have become free.
_MEMORY, _MOST_SHARE, _LEFT = 0.1, 0.25, 0.999


class TwoPassPlanner(Planner):
    """Plans what `Planner` does, and for a request that steps alone second passes besides. way: where passes go.

    With other requests under way a second pass would keep theirs waiting, so then none is planned. Boxes that share
    processors, or have other work, are slower at the first pass while they have the second: what that takes is learned.
    """

    def __init__(self, way: TravellingTarget, max_width: int = MAX_WIDTH) -> None:
        super().__init__(max_width)
        self._way = way
        self._behind_s = 0.0  # that a step takes more for having a second pass; below 0 by chance
        self._num_in_two = 0

    @property
    def max_nodes(self) -> int:
        return 2 * self.times.max_width

    def plan(
        self, requests: Sequence[Request], past: int, room: int, draft: Draft, given_room: int | None = None
    ) -> StepPlan:
        plan = super().plan(requests, past, room, draft, given_room)
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
        asked_s: float = 0.0,
    ) -> None:
        super().settle(plan, requests, times, accepted, asked_s)
        if not plan.num_first:
            self._num_in_two = 0 if plan.drafts else self._num_in_two
            self._behind_s *= _LEFT
        elif (walked := accepted[0]) is not None:
            self._num_in_two += 1
            worked_s, links_s = self._times(plan.past)
            first_s, second_s = worked_s[plan.num_first], worked_s[plan.width - plan.num_first]
            expected_s = first_s + links_s
            if max(walked.path) >= plan.num_first:
                expected_s += second_wait(first_s, second_s, self._way.num_stages)
            more_s = min(times.forward_s + walked.waited_s - expected_s, _MOST_SHARE * expected_s)
            self._behind_s += _MEMORY * (more_s - self._behind_s)

    def _split(self, plan: StepPlan, request: Request, draft: DraftTree) -> StepPlan:
        (worked_s, links_s), gains = self._times(plan.past), np.array([1.0, *node_gains(request, draft)])
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
            width=num_nodes,
            num_first=best.num_first,
        )

    def _times(self, past: int) -> tuple[Float64Array, float]:
        """Seconds in which boxes work for a pass of n nodes, float64 (1 + W,), and those in which none does."""
        times = np.array(self.times.seconds(1, past))
        links_s = min(self._way.links_s, float(times[1]))
        return np.maximum(times - links_s, 0.0), links_s
