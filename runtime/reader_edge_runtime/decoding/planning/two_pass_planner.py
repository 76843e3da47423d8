"""A planner for targets over links: where it pays, a step's less likely nodes go in a second pass behind the first."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.decoding.planning.planner import Draft, Planner, StepPlan, node_gains
from reader_edge_runtime.decoding.planning.split import best_splits
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.measuring.pass_cost import MAX_WIDTH
from reader_edge_runtime.target import TravellingTarget

_MARGIN = 1.02  # by how much two passes must promise to beat one, since estimates err


class TwoPassPlanner(Planner):
    """Plans what `Planner` does, and for a request that steps alone second passes besides. way: where passes go.

    With other requests under way a second pass would keep theirs waiting, so then none is planned.
    """

    def __init__(self, way: TravellingTarget, max_width: int = MAX_WIDTH) -> None:
        super().__init__(max_width)
        self._way = way

    @property
    def max_nodes(self) -> int:
        return 2 * self.times.max_width

    def plan(
        self, requests: Sequence[Request], past: int, room: int, draft: Draft, given_room: int | None = None
    ) -> StepPlan:
        plan = super().plan(requests, past, room, draft, given_room)
        if not plan.drafts or len(requests) > 1 or not self.is_alone or not self.times.is_measured:
            return plan
        in_two = self._split(plan, requests[0], plan.drafts[0])
        plan = in_two if in_two.width < room else plan  # as a second pass of one node may be padded to two
        self.max_drafted = min(max(2 * plan.width, self.max_drafted), self.max_nodes)
        return plan

    def _split(self, plan: StepPlan, request: Request, draft: DraftTree) -> StepPlan:
        times, links_s = np.array(self.times.seconds(1, plan.past)), self._way.links_s
        beside_s, plain_s = self._plain_s(1) + self._draft_s(1), float(times[1]) + self._plain_s(1)
        gains = np.array([1.0, *node_gains(request, draft)])
        worked_s = np.maximum(times - links_s, 0.0)
        one, best = best_splits(draft, gains, worked_s, links_s + beside_s, self._way.num_stages)
        if best.rate < _MARGIN * one.rate:
            return plan
        order = draft.best_first()
        num_nodes = best.num_first + best.num_second
        first, second = order[: best.num_first], order[best.num_first : num_nodes]
        saved_s = (best.num_tokens - 1) * plain_s - (best.seconds - beside_s - float(times[1]))
        return plan._replace(
            trees=[draft.of_nodes([*sorted(first), *sorted(second)])],
            saved_s=[saved_s],
            width=num_nodes,
            num_first=best.num_first,
        )
