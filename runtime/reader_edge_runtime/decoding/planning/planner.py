"""Planning: which requests draft in a step, and how many nodes its pass gets.

A pass gets the nodes with the most expected tokens per second on this machine, if that is clearly better than plain
decoding; in a batch they go to the requests where they are worth most. A request whose drafts of late promised less
time than they took backs off.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from reader_edge_runtime.decoding.planning.pass_time_model import PassTimeModel
from reader_edge_runtime.decoding.planning.tree_widths import best_widths, equal_width, time_at
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.verification import Verification
from reader_edge_runtime.draft_tree import FORCED_SOURCE, DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest
from reader_edge_runtime.drafting.payoff import AcceptanceEstimate, Overheads, pays_off
from reader_edge_runtime.measuring.pass_cost import MAX_WIDTH, PassCost
from reader_edge_runtime.stats import StepTimes

_FIRST_DRAFT = 16  # nodes drafted before the first pass was chosen
_LEAST_DRAFT = 4
_MOST_ROWS = 128  # of a pass, padding included: each takes memory for a row of logits

_WASTED_SHARE = 0.005  # share of decoding time that futile drafts take in the long run
_START_SHARE = 0.02  # share of a request's coming plain steps that a wasted first draft may take
_INVESTED = 0.05  # share of what drafts as good as the last ones would save in these steps that it may take besides
_COSTLY = 20  # steps of a longest backoff from which on a draft takes long beside a plain step: a tenth of it
_REPEATED = 3  # tokens in a row that end a backoff
_START_REPEATED = 2  # before the first draft, so many times those that take as long as it besides
_PLAIN_EVERY = 64  # drafted steps after which one is plain, so that the time of a plain step stays known

_PAST_STEP = 64  # committed rows between which a plain step is taken to last as long
_ROWS_A_PASS = 150  # scored prompt rows that save an answer one pass (docs/explanation/sources.md)
_TYPICAL_WIDTH = 8


class StepPlan(NamedTuple):
    """One step of the running requests, which are named by their numbers.

    pasts: committed rows that its pass reads of each request. backing_off: those that could draft but back off.
    trees: what the pass verifies, of each request. drafts: whole drafts of those that drafted. forced: of others, what
    must come. saved_s: of each request, the time that its draft promises to save; empty where nothing was drafted.
    num_first: so many first nodes of the only tree go in a first pass, and the others in a second one directly behind
    it; 0 for one pass.
    """

    pasts: Sequence[int]
    backing_off: list[int]
    trees: list[DraftTree]
    drafts: dict[int, DraftTree]
    forced: dict[int, DraftTree]
    saved_s: list[float]
    num_first: int = 0

    @property
    def width(self) -> int:
        """Nodes of the widest tree."""
        return max(map(len, self.trees))


# Makes drafts by request; a request whose draft failed is left out.
Draft = Callable[[dict[int, DraftRequest]], dict[int, DraftTree]]


class Planner:
    """Plans steps from measured pass times, what drafting took of late, and each request's estimate of acceptance.

    is_alone: whether no other decoder's passes wait where this one's do.
    """

    is_alone = True

    def __init__(self, max_width: int = MAX_WIDTH) -> None:
        self.times = PassTimeModel(max_width)
        self.overheads = Overheads()
        self.max_drafted = _FIRST_DRAFT
        self._reads_prompts = True
        self._num_drafted_steps = 0
        self._spare_s = 0.0  # what first drafts may take that are not expected to pay
        self._step_key: list[int] = []
        self._last_step_s = 0.0
        self._last_estimate = AcceptanceEstimate()

    @property
    def max_nodes(self) -> int:
        """Of a step's tree."""
        return self.times.max_width

    def take(self, cost: PassCost) -> None:
        """Take measured pass times."""
        cost = cost.bounded()
        self.times.take(cost)
        times = cost.pass_seconds(cost.pasts[0])
        self._reads_prompts = cost.row_s * _ROWS_A_PASS <= times[min(_TYPICAL_WIDTH, len(times) - 1)]

    def begin(self) -> AcceptanceEstimate:
        """The estimate of a new request, which starts from what the last one taught.

        Where a draft takes long beside a plain step, and drafting has not paid of late, a short answer could not make
        up for the start: the request begins in a backoff.
        """
        estimate, longest = self._last_estimate.for_next(), self._longest_backoff([0])
        if longest > _COSTLY and not estimate.has_paid:
            estimate.backoff_left = max(estimate.backoff_left, longest // 2)
        return estimate

    def may_begin(self, request: Request) -> bool:
        """Whether a new request gets a drafter: it can make up for its start, may try all the same, or has hints."""
        if request.has_hints or self._spare_s >= self.overheads.first_draft_s:
            return True
        return not self._is_wasted_start(request, [request.num_prompt_tokens])

    def end(self, request: Request, seconds: float) -> None:
        """Learn from a request that ended, whose drafter took so long to finish."""
        self._last_estimate = request.estimate
        if request.has_drafted:
            self.overheads.learn_finish(seconds)

    def prompt_rows(self, request: Request, length: int, num_nodes: int, num_wanted: int) -> range:
        """Nodes to report on of a prompt's chunk behind `length` tokens: the last, and those that drafting pays for."""
        is_wanted = request.drafter is not None and self._reads_prompts and not request.estimate.is_wasted
        is_wanted = is_wanted and not self._is_wasted_start(request, [length])  # what is read pays in drafts alone
        first = request.num_prompt_tokens - max(num_wanted if is_wanted else 1, 1) - length
        return range(min(max(first, 0), num_nodes - 1), num_nodes)

    def plan(
        self, requests: Sequence[Request], pasts: Sequence[int], room: int, draft: Draft, given_room: int | None = None
    ) -> StepPlan:
        """Plan a step. pasts: rows that a pass reads of each request. room: nodes that the context still holds.

        draft: makes the drafts that the limits allow. given_room: room of trees that clients give, whose width is their
        affair, since a link is in it; None: room.
        """
        most = 0 if self.is_plain_due else min(room, self.max_drafted, max(_MOST_ROWS // len(requests), 1))
        backing_off: list[int] = []
        draft_requests: dict[int, DraftRequest] = {}
        for b, request in enumerate(requests):
            if request.drafter is None or most < 2 or request.num_remaining_tokens < 2:
                continue
            is_wasted_start = self._is_wasted_start(request, pasts)
            if is_wasted_start and self._spare_s < self.overheads.first_draft_s:
                continue  # tried now and then all the same: what starting takes is known from starts alone
            if request.estimate.backoff_left > 0:
                backing_off.append(b)
            else:
                self._spare_s = 0.0 if is_wasted_start else self._spare_s
                token_s = self._step_s(pasts) / len(requests) if self.times.is_measured else 0.0
                draft_requests[b] = DraftRequest(request.drafter, most, request.num_remaining_tokens - 1, token_s)
        most_given = room if given_room is None else given_room
        most_given = min(most_given, self.times.max_width, max(_MOST_ROWS // len(requests), 1))
        trees = [_first_tree(request, most_given) for request in requests]
        forced = {
            b: _forced_chain(request, most)
            for b, request in enumerate(requests)
            if b not in draft_requests
            and most > 1
            and not request.is_lockstep
            and request.forced
            and request.num_remaining_tokens > 1
        }
        drafts = draft(draft_requests) if draft_requests else {}
        all_drafts = forced | drafts
        if not all_drafts:
            return StepPlan(pasts, backing_off, trees, {}, {}, [])
        widths, saved_s = self.choose(requests, [all_drafts.get(b) for b in range(len(requests))], pasts)
        for b, draft_tree in all_drafts.items():
            trees[b] = draft_tree.pruned(widths[b])
        return StepPlan(pasts, backing_off, trees, drafts, forced, saved_s)

    @property
    def is_plain_due(self) -> bool:
        """Whether the next step should be plain, only to measure it."""
        return self._num_drafted_steps >= _PLAIN_EVERY

    def choose(
        self, requests: Sequence[Request], drafts: Sequence[DraftTree | None], pasts: Sequence[int]
    ) -> tuple[list[int], list[float]]:
        """Nodes of each tree, 1 for plain decoding; and of each, the time that it promises to save, drafting left out.

        A tree's expected tokens at n nodes are the sum of its n best values: the accepted nodes and the bonus token.
        """
        gains = [
            [] if draft is None else sorted(node_gains(request, draft), reverse=True)
            for request, draft in zip(requests, drafts, strict=True)
        ]
        times = self.times.seconds(pasts, 1 + max(map(len, gains)))
        drafting_s = self._draft_s(sum(draft is not None for draft in drafts))
        plain_s = times[1] + self._plain_s(len(requests))
        padding_share, further_s = self.times.padding_share, self.times.further_seconds(pasts)
        widths = best_widths(gains, times, padding_share, plain_s - times[1] + drafting_s, further_s)
        self.max_drafted = min(max(2 * max(widths), _LEAST_DRAFT), self.times.max_width)
        chosen = [each[: width - 1] for each, width in zip(gains, widths, strict=True)]
        num_nodes = sum(map(len, chosen))
        if not num_nodes:
            return widths, [0.0] * len(widths)
        token_s = plain_s / len(requests)
        width = equal_width(len(requests) + num_nodes, 1 + max(map(len, chosen)), len(requests), padding_share)
        node_s = (time_at(times, width) - times[1]) / num_nodes
        own_s = [node_s + (1 - padding_share) * each for each in further_s]
        return widths, [sum(each) * token_s - len(each) * own for each, own in zip(chosen, own_s, strict=True)]

    def settle(
        self,
        plan: StepPlan,
        requests: Sequence[Request],
        times: StepTimes,
        accepted: Sequence[Verification | None],
        proposal_s: float = 0.0,
    ) -> None:
        """Learn what a planned step took and what its drafts gave.

        accepted: None for a request that failed. proposal_s: seconds of drafting that costly sources took.
        """
        num_first = sum(not requests[b].has_drafted for b in plan.drafts)
        longest_backoff = self._longest_backoff(plan.pasts) if plan.drafts else 0  # at the plan's times
        if not plan.num_first:  # else the second pass may have been in the way of the first
            self.times.learn([len(tree) for tree in plan.trees], plan.pasts, times.forward_s)
        # Sources that are called only where they pay answer for their time themselves: backoff would keep them from it.
        self.overheads.learn_step(max(times.beside_s - proposal_s, 0.0), len(requests), len(plan.drafts), num_first)
        spared_s = self._spare_s + _WASTED_SHARE * (times.forward_s + times.beside_s)
        self._spare_s = min(spared_s, self.overheads.first_draft_s)
        self._num_drafted_steps = 0 if plan.width == 1 else self._num_drafted_steps + 1
        for b, draft in (plan.drafts | plan.forced).items():
            if (verification := accepted[b]) is not None:
                path, token_ids, *_ = verification
                requests[b].forced_estimate.learn(draft, plan.trees[b], path, token_ids[0], is_forced=True)
        for b in plan.backing_off:
            request = requests[b]
            request.estimate.backoff_left -= 1
            request.stats.num_backoff_steps += 1
            if request.repetition.is_shown_by(request.drafted_ids, self._num_repeated(request, plan.pasts)):
                request.estimate.wake()
        for b, draft in plan.drafts.items():
            request, verification = requests[b], accepted[b]
            request.has_drafted = True
            request.stats.num_wasted_drafts += len(plan.trees[b]) == 1
            if verification is not None:
                request.estimate.learn(draft, plan.trees[b], verification.path, verification.token_ids[0])
                if draft_s := self._draft_s(1):
                    request.estimate.weigh(plan.saved_s[b] / draft_s, longest_backoff)

    def _longest_backoff(self, pasts: Sequence[int]) -> int:
        """Steps, so that futile drafts take no more than their share."""
        return int(self._draft_s(1) * len(pasts) / (_WASTED_SHARE * self._step_s(pasts)))

    def _num_repeated(self, request: Request, pasts: Sequence[int]) -> int:
        """Tokens in a row that must repeat a text until drafts of it are worth a try."""
        num_steps = 0.0 if request.has_drafted else self.overheads.first_draft_s / self._step_s(pasts)
        return _REPEATED + int(_START_REPEATED * num_steps)

    def _is_wasted_start(self, request: Request, pasts: Sequence[int]) -> bool:
        """Whether a request never drafted, and its coming tokens are not expected to make up for starting."""
        if request.has_drafted:
            return False
        if len(pasts) > 1 and request.estimate.num_backoffs > 0:
            return True  # the others, who wait for its start as well, make up for it no more
        if not self.times.is_measured:
            return False
        saved_s = max(request.estimate.payoff_ratio - 1, 0.0) * self._draft_s(1)
        share_s = _START_SHARE * self._step_s(pasts) + _INVESTED * saved_s
        return not pays_off(request.num_remaining_tokens - 1, share_s, self.overheads.first_draft_s)

    def _step_s(self, pasts: Sequence[int]) -> float:
        """Seconds of a plain step, as last needed for about these pasts; of its pass alone where none was measured."""
        key = [past // _PAST_STEP for past in pasts]
        if key != self._step_key:
            self._step_key, self._last_step_s = key, self.times.seconds(pasts, 1)[1] + self._plain_s(len(pasts))
        return self._last_step_s

    def _plain_s(self, batch_size: int) -> float:
        return batch_size * self.overheads.plain_s if self.times.is_measured else 0.0

    def _draft_s(self, num_drafts: int) -> float:
        return num_drafts * self.overheads.draft_s if self.times.is_measured else 0.0


def node_gains(request: Request, draft: DraftTree) -> list[float]:
    """Expected tokens that each node below a draft's root adds."""
    factor, forced = request.estimate.acceptance_factor, request.forced_estimate.acceptance_factor
    below = zip(draft.values[1:], draft.sources[1:], strict=True)
    return [value * (forced if source == FORCED_SOURCE else factor) for value, source in below]


def _first_tree(request: Request, most: int) -> DraftTree:
    """The tree that a client has given, in lock-step with which the request steps; the pending token alone else."""
    if request.remote is not None and request.is_lockstep:
        return request.remote.take_tree(min(most, request.num_remaining_tokens))
    return DraftTree.root(request.token_ids[-1])


def _forced_chain(request: Request, max_nodes: int) -> DraftTree:
    """What must come, of a request whose drafter is not called."""
    tree = DraftTree.root(request.token_ids[-1])
    for node, token_id in enumerate(request.forced[: max_nodes - 1]):
        tree.add(token_id, node, FORCED_SOURCE)
    return tree
