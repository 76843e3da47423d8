"""Planners, requests and drafts of chosen costs and values, for tests of planning."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from reader_edge_runtime.config import GenerationConfig
from reader_edge_runtime.decoding.planning.planner import Planner, StepPlan
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.verification import Verification
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestDrafter
from reader_edge_runtime.drafting.payoff import Overheads
from reader_edge_runtime.measuring.pass_cost import PassCost
from reader_edge_runtime.stats import StepTimes
from tests.fake_target import make_manifest

WIDTHS = (1, 2, 4, 8, 16)
PASTS = (10, 100)
NOTHING = Overheads(0.0, 0.0, 0.0, 0.0)


def cost(growth: float, batch_size: int = 1, step: float = 0.0) -> PassCost:
    """10 ms a pass, `growth` of it more per node; a step of the curve between 4 and 8 nodes."""
    row = np.array([0.01 * (1 + growth * (width - 1)) + (step if width > 4 else 0.0) for width in WIDTHS])
    return PassCost(batch_size, PASTS, WIDTHS, np.stack([row, 2 * row]))


def planner_of(cost: PassCost, overheads: Overheads = NOTHING) -> Planner:
    """A planner for which steps take nothing but their pass, unless a test says otherwise."""
    planner = Planner(max_width=16)
    planner.take(cost)
    planner.overheads = replace(overheads)
    return planner


def a_request(max_tokens: int = 100, is_believed: bool = True) -> Request:
    """A request that can draft, and whose drafts came true so far."""
    request = Request([1, 2, 3], GenerationConfig(max_tokens=max_tokens), make_manifest())
    request.drafter = cast(RequestDrafter, object())
    request.has_drafted = is_believed
    if is_believed:
        request.estimate.accepted = request.estimate.predicted
    return request


def chain_of(values: Sequence[float]) -> DraftTree:
    n = len(values)
    return DraftTree([3, *range(n - 1)], [-1, *[0] * (n - 1)], [""] * n, list(values))


def choose(planner: Planner, *values: Sequence[float], past: int = 50) -> int:
    return max(
        planner.choose([a_request() for _ in values], [chain_of(each) for each in values], [past] * len(values))[0]
    )


def plan(planner: Planner, requests: Sequence[Request], values: Sequence[float], room: int = 100) -> StepPlan:
    def draft(draft_requests: dict[int, DraftRequest]) -> dict[int, DraftTree]:
        return {b: chain_of(values) for b in draft_requests}

    return planner.plan(requests, [50] * len(requests), room, draft)


def settle(
    planner: Planner, made: StepPlan, requests: Sequence[Request], proposal_s: float = 0.0, **times: float
) -> None:
    """Nothing of the drafts was accepted."""
    refused = [Verification([0], [31])] * len(requests)
    planner.settle(made, requests, StepTimes(forward_s=0.015, **times), refused, proposal_s)
