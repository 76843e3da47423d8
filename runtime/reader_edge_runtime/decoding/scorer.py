"""Runs passes of the target over the trees of requests, and chooses tokens from their logits."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from reader_edge_runtime.acceptance import Choices
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.verification import Verification, walk
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import Drafter
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.target import ImageRows, InFlightPass, Pass, PipelinedTarget, Target


class ScoredTrees:
    """trees, result: B trees as far as they are scored, and what the target scored for all their nodes.

    whole: the one tree with the nodes of a second pass as well; behind: that pass, which is in flight.
    waited_s: seconds that it was waited for.
    """

    waited_s = 0.0

    def __init__(
        self,
        trees: Sequence[DraftTree],
        result: ForwardResult,
        whole: DraftTree | None = None,
        behind: InFlightPass | None = None,
    ) -> None:
        self.trees = trees
        self.result = result
        self._whole = whole
        self._behind = behind

    def enter(self, walked: Verification) -> int:
        """The node of the second pass in which a walk through the first goes on, -1 for none.

        Where there is one, the pass is waited for, and its nodes are scored from now on. Raises ProviderError.
        """
        if self._whole is None or self._behind is None:
            return -1
        node = self._whole.child(walked.path[-1], walked.token_ids[-1])
        if node >= 0:
            started = time.perf_counter()
            self.result = self.result.joined(self._behind.result())
            self.waited_s = time.perf_counter() - started
            self.trees, self._behind = [self._whole], None
        return node

    def close(self) -> None:
        """Have nobody wait for a second pass that was not entered."""
        if self._behind is not None:
            self._behind.drop()
            self._behind = None


class Scorer:
    """Knows what requests, their drafter and `on_logits` need of a pass. on_logits: see Decoder."""

    def __init__(self, target: Target, cache: Cache, drafter: Drafter) -> None:
        self.target = target
        self.cache = cache
        self.drafter = drafter
        self.on_logits: Callable[[Request, Float32Array], None] | None = None

    def score(
        self,
        slot: int,
        tree: DraftTree,
        rows: range,
        request: Request,
        num_kept: int,
        is_chosen: bool = True,
        is_learned: bool = True,
        images: ImageRows | None = None,
    ) -> ForwardResult:
        """Score one request's tree, and ask for what it needs to choose from it. num_kept, images: see `Pass`.

        is_chosen: whether it chooses. is_learned: whether the drafter gets layer states.
        """
        wanted = self._wanted(slot, [tree], [rows], [request], num_kept, is_chosen)
        wanted = wanted if images is None else wanted._replace(images=images, shifts=())
        wanted = wanted if is_learned else wanted._replace(wants_layer_states=False)
        return self.target.forward(self.cache, wanted)

    def score_trees(
        self, trees: list[DraftTree], num_first: int, requests: Sequence[Request], num_kept: int
    ) -> ScoredTrees:
        """Score a step's trees, of the first slots. num_first: see `StepPlan`; only for a `PipelinedTarget`."""
        wanted = self._wanted(0, trees, [range(len(tree)) for tree in trees], requests, num_kept)
        if not num_first:
            return ScoredTrees(trees, self.target.forward(self.cache, wanted))
        [whole] = trees
        first = wanted._replace(trees=[whole.of_nodes(range(num_first))], rows=[range(num_first)])
        second = wanted._replace(rows=[range(num_first, len(whole))], num_kept=0, num_before=num_first)
        result, behind = cast(PipelinedTarget, self.target).forward_two(self.cache, first, second)
        return ScoredTrees(first.trees, result, whole, behind)

    def _wanted(
        self,
        first_slot: int,
        trees: list[DraftTree],
        rows: list[range],
        requests: Sequence[Request],
        num_kept: int,
        is_chosen: bool = True,
    ) -> Pass:
        """requests: those of the trees, in their order. is_chosen: whether they choose from the pass."""
        wants_logits = wants_scores = False
        wants_hidden_states = self.drafter.wants_hidden_states
        for request in requests if is_chosen else ():
            wants_logits |= request.needs_logits or request.is_reading_prompt or self.on_logits is not None
            wants_scores |= request.config.is_scored or request.acceptance.wants_log_sum_exp
            wants_hidden_states |= request.acceptance.wants_hidden_states
        wanted = Pass(first_slot, trees, rows, wants_logits, wants_scores, wants_hidden_states, num_kept)
        wanted = wanted._replace(wants_layer_states=self.drafter.wants_layer_states)
        if self.target.manifest.adapted_products:
            wanted = wanted._replace(adapter_ids=[each.adapter_id for each in requests])
        if self.target.manifest.images is None:
            return wanted
        return wanted._replace(shifts=[each.images.shift if each.images is not None else 0 for each in requests])

    def walk(
        self, request: Request, scored: ScoredTrees, b: int, near_tie_margin: float, start: int = 0
    ) -> Verification:
        """Walk tree b by the request's rule of acceptance, into a second pass where there is one; see `walk`."""
        tree, result = scored.trees[b], scored.result
        peek, take = partial(self.peek, request, result, b), partial(self.take, request, result, b)
        is_single = len(tree) == 1 and len(result.top_ids) == 1
        margin = near_tie_margin if request.takes_best and not is_single else 0.0
        choices = Choices(tree, result, b, peek, request.allows)
        walked = walk(request.acceptance, choices, take, margin, start)
        if walked.needs_recheck or not request.is_running or (entry := scored.enter(walked)) < 0:
            return walked
        walked = walked._replace(waited_s=scored.waited_s)
        return walked.followed_by(self.walk(request, scored, b, near_tie_margin, entry))

    def recheck(self, slot: int, request: Request) -> int:
        """Emit the token after the pending one by a pass of that alone, whose row is kept; returns it."""
        request.stats.num_redecided_tokens += 1
        result = self.score(slot, DraftTree.root(request.token_ids[-1]), range(1), request, num_kept=1)
        self.cache.commit(slot, [0])
        return self.take_choice(request, result, 0)

    def peek(self, request: Request, result: ForwardResult, b: int, row: int) -> int:
        """The token that the target chooses after row (b, row) of a pass; nothing is changed."""
        return request.peek(result, b, row, self.on_logits is not None)

    def take(self, request: Request, result: ForwardResult, b: int, row: int, token_id: int) -> bool:
        """Emit a token after row (b, row) of a pass; True when it is the last."""
        if self.on_logits is not None:
            self.on_logits(request, result.wanted_logits[b, row])
        return request.take(result, b, row, token_id)

    def take_choice(self, request: Request, result: ForwardResult, row: int) -> int:
        """Emit what the target itself chooses after a row of a pass over this request alone."""
        token_id = self.peek(request, result, 0, row)
        self.take(request, result, 0, row, token_id)
        return token_id
