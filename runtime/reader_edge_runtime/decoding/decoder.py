"""The decoder: draft, forward, verify, commit, learn, for all running requests. It knows token ids only."""

from collections.abc import Callable, Sequence

from reader_edge_runtime.adapters.adapter_set import LoadedAdapter
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.config import EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.draft_permission import UNCHECKED, DraftPermission
from reader_edge_runtime.decoding.kv_budget import FIRST_CAPACITY, KvBudget
from reader_edge_runtime.decoding.planning.planner import Planner, StepPlan
from reader_edge_runtime.decoding.prefill import Prefill, PrefillBudget
from reader_edge_runtime.decoding.prompt_images import EncodedImage
from reader_edge_runtime.decoding.recorder import Recorder, recorded
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.sampling.constraint import Constraint
from reader_edge_runtime.decoding.sampling.sampler import Sampler
from reader_edge_runtime.decoding.scheduler import Scheduler
from reader_edge_runtime.decoding.scorer import ScoredTrees, Scorer
from reader_edge_runtime.decoding.slots import Slots
from reader_edge_runtime.decoding.verification import Verification
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import Drafter, DraftRequest, TargetRows
from reader_edge_runtime.target import Target


class Decoder:
    """Requests in, tokens out. Not thread-safe: one caller at a time.

    running[i] owns KV slot i. Every running request has all but its last token (the pending one) in the cache. Prompts
    are scored one after the other, in the order they came.
    planner: who drafts, and how wide each pass is. near_tie_margin: the least difference between the two best logits at
    which greedy decoding trusts a wide pass, see `walk`. permission: which requests may draft, and why; settled when
    the decoder is made.
    prefill_budget: how much of the prompts a step scores. The chunks are the same with any.
    on_advance: called when running requests have got tokens, and prompts are about to be scored.
    on_logits: called with (request, logits (V,)) before each token is emitted, which then is chosen from these logits;
    for tools that compare runs bit by bit.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        config: EngineConfig,
        planner: Planner | None = None,
        near_tie_margin: float = 0.0,
        permission: DraftPermission = UNCHECKED,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.config = config
        self.planner = planner or Planner()
        self.near_tie_margin = near_tie_margin
        # With the guard even the root's choice may be rechecked, so no row is kept yet.
        self._num_kept = 0 if near_tie_margin else 1
        self.cache = target.new_cache(1, FIRST_CAPACITY)
        self.slots = Slots(self.cache, config.max_batch)
        max_context, widest = target.manifest.max_context, self.planner.max_nodes
        self.kv_budget = KvBudget(self.cache, config.max_kv_bytes, config.max_batch, widest, max_context)
        self.scheduler = Scheduler(self.slots, self.kv_budget)
        self.running, self.waiting = self.scheduler.running, self.scheduler.waiting
        self._stepping: list[Request] = []
        self._permission = permission
        self.prefill_budget = PrefillBudget()
        self.on_advance: Callable[[], object] | None = None
        self.recorder = Recorder()
        self._scorer = Scorer(target, self.cache, drafter)
        self._prefill = Prefill(self._scorer, self.slots, permission, config.prefill_chunk)

    @property
    def permission(self) -> DraftPermission:
        return self._permission

    @property
    def all_running(self) -> list[Request]:
        """Requests that decode, with those of further microbatches where there are any."""
        return list(self.running)

    @property
    def num_kv_bytes(self) -> int:
        """Memory that the KV cache takes now."""
        return self.cache.num_bytes

    @property
    def on_logits(self) -> Callable[[Request, Float32Array], None] | None:
        return self._scorer.on_logits

    @on_logits.setter
    def on_logits(self, on_logits: Callable[[Request, Float32Array], None] | None) -> None:
        self._scorer.on_logits = on_logits

    def submit(
        self,
        prompt_token_ids: Sequence[int],
        config: GenerationConfig,
        is_stop: Callable[[int], bool] | None = None,
        sampler: Sampler | None = None,
        constraint: Constraint | None = None,
        images: Sequence[EncodedImage] = (),
        adapter: LoadedAdapter | None = None,
    ) -> Request:
        """Queue a request, which `step` decodes; see Request. Raises PromptError, ConfigError or CapacityError."""
        given = prompt_token_ids, config, self.target.manifest, is_stop, sampler, constraint
        request = Request(*given, images=images, adapter=adapter)
        self.enqueue(request)
        return request

    def enqueue(self, request: Request) -> None:
        """Queue a request that was made before. Raises what `check` does."""
        self._begin(request)
        self.scheduler.enqueue(request)

    def _begin(self, request: Request) -> None:
        self.check(request)
        request.estimate = self.planner.begin()
        may_draft = request.config.is_drafted and self.permission.allows(request)
        if request.remote is not None and not may_draft:
            request.remote.forbid()
        if may_draft and not request.is_lockstep and (self.drafter.keeps_answers or self.planner.may_begin(request)):
            request.begin_drafting(self.drafter)

    def check(self, request: Request) -> None:
        """Raise CapacityError for a request that no room could be made for. From any thread."""
        self.kv_budget.check(request)

    def step(self) -> list[Request]:
        """Emit at least one token for every running request, then score prompts while slots and budget last.

        A prompt's last chunk emits its first token. Returns all requests that had a part, those included that failed:
        an error of one request ends that request alone, and one of a pass ends those in it. An interrupt cancels
        what owns a slot, whose tokens and cache rows might not match any more.
        """
        self.scheduler.drop_torn()
        self._stepping = advanced = self.scheduler.arrange()
        try:
            if self._stepping:
                self.recorder.start()
                self._advance()
                if self.on_advance is not None:
                    self.on_advance()
            advanced = advanced + self._score_prompts()
        except BaseException as error:
            for request in self.running if isinstance(error, Exception) else self.scheduler.owners:
                if request.is_running:
                    request.fail(error)
            self.scheduler.drop_torn()
            self._release_ended()
            if not isinstance(error, Exception):
                raise
        return advanced

    def finish(self, *requests: Request) -> None:
        """Step until these requests have ended. Raises what made one of them fail."""
        while any(request.is_running for request in requests):
            self.step()
        for request in requests:
            if request.error is not None:
                raise request.error

    def cancel(self, request: Request) -> None:
        """Give up on a request; the cache stays right for the others and for reuse."""
        if request.is_running:
            request.finish_reason = "cancelled"
        for line in (self.waiting, self.scheduler.parked):
            if request in line:
                line.remove(request)
        self.scheduler.drop_torn()
        self._release_ended()
        request.close()  # also one that was never enqueued

    def cancel_all(self) -> None:
        """Give up on all requests."""
        for request in [*self.scheduler.owners, *self.waiting, *self.scheduler.parked]:
            self.cancel(request)

    def skip_prefill(self, token_ids: list[int]) -> None:
        """Behave as if these tokens were in the cache already, while nothing runs: for measurements at a given length.

        Passes take as long as usual, but what they compute means nothing.
        """
        self.cache.reserve(self.cache.num_slots, len(token_ids) + 1)
        self.slots.fill(token_ids)

    def flush_prefixes(self) -> None:
        """Wait until what is to outlive the process is on disk."""
        if self.slots.prefixes is not None:
            self.slots.prefixes.flush()

    def forget(self) -> None:
        """Drop all that past requests left behind: cached prefixes and the drafter's history."""
        self.slots.forget()
        self.drafter.forget()

    def _advance(self) -> None:
        """One step of all running requests. Plain decoding is the same step with trees of one node."""
        plan = self._plan()  # each request's draft, cut to a tree: node 0 is the pending token
        scored = self._forward(plan)  # one pass scores every node, or two behind each other
        verifications = self._verify(scored)  # walk each tree with the target's own choices
        self._commit(verifications)  # keep the walked rows
        self._learn(plan, verifications, scored)
        self._settle(plan, verifications)

    @recorded
    def _plan(self) -> StepPlan:
        """Who drafts, what of each draft is verified, and how wide the pass is."""
        # A padded tree needs rows in every slot, so the fullest slot bounds all trees.
        lengths = self.cache.lengths[: len(self._stepping)]
        room = min(self.target.manifest.max_context - max(lengths), self.kv_budget.max_nodes)
        # Native attention reads of each text what it has; the graph's own definition, as much of all as of the longest.
        pasts = lengths if self.target.is_native else [max(lengths)] * len(lengths)
        max_nodes = self.permission.max_nodes(len(self._stepping))
        room = given_room = room if max_nodes is None else min(room, max_nodes)
        if not self.drafter.is_ready:
            room = 0
            for request in self._stepping:
                request.stats.num_unready_steps += request.drafter is not None
        return self.planner.plan(self._stepping, pasts, room, self._draft, given_room)

    def _draft(self, draft_requests: dict[int, DraftRequest]) -> dict[int, DraftTree]:
        """The drafts of running requests, by slot, without those that failed."""
        drafts = {}
        rows = [each._replace(rows=TargetRows(self.cache, slot)) for slot, each in draft_requests.items()]
        for (slot, draft_request), draft in zip(draft_requests.items(), self.drafter.draft(rows), strict=True):
            request = self._stepping[slot]
            with request.catching_errors():
                if isinstance(draft, Exception):
                    raise draft
                request.stats.proposed_by_source.update(draft_request.request.costly_names)
                draft.check(request.token_ids[-1], self.target.manifest.vocab_size, draft_request.max_nodes)
                constraint = request.constraint
                drafts[slot] = draft if constraint is None else constraint.cut(draft, draft_request.max_nodes)
        return drafts

    @recorded
    def _forward(self, plan: StepPlan) -> ScoredTrees:
        for request in self._stepping:
            with request.catching_errors():
                request.prepare()
        return self._scorer.score_trees(plan.trees, plan.num_first, self._stepping, self._num_kept)

    @recorded
    def _verify(self, scored: ScoredTrees) -> list[Verification | None]:
        """Walk every tree by the request's rule of acceptance; None for a request that failed."""
        verifications: list[Verification | None] = [None] * len(scored.trees)
        try:
            for b, request in enumerate(self._stepping):
                with request.catching_errors():
                    if request.is_running:  # its draft did not fail
                        verifications[b] = self._scorer.walk(request, scored, b, self.near_tie_margin)
        finally:
            scored.close()
        return verifications

    @recorded
    def _commit(self, verifications: list[Verification | None]) -> None:
        """Keep the walked rows; take choices near a tie from passes of their own."""
        unsure = []
        for slot, verification in enumerate(verifications):
            if verification is None:
                continue
            if verification.needs_recheck:
                unsure.append((slot, verification))
            self.cache.commit(slot, verification.path[:-1] if verification.needs_recheck else verification.path)
        for slot, verification in unsure:
            request = self._stepping[slot]
            with request.catching_errors():
                token_id = self._scorer.recheck(slot, request)
                token_ids = [*verification.token_ids, token_id]
                verifications[slot] = verification._replace(token_ids=token_ids, needs_recheck=False)

    @recorded
    def _learn(self, plan: StepPlan, verifications: list[Verification | None], scored: ScoredTrees) -> None:
        """Count what happened, and let the drafters learn, also from rejected nodes."""
        for b, (request, tree, verification) in enumerate(
            zip(self._stepping, scored.trees, verifications, strict=True)
        ):
            if verification is None:
                continue
            request.count_tree(plan.trees[b], verification.path)
            has_scores = b in plan.drafts or self.drafter.wants_layer_states  # of which none may be missing
            if has_scores and request.drafter is not None:
                with request.catching_errors():
                    root = len(request.drafted_ids) - len(verification.token_ids) - 1
                    vocab_size = self.target.manifest.vocab_size
                    request.drafter.observe(scored.result.scored(b, tree, range(len(tree)), root, vocab_size))

    def _settle(self, plan: StepPlan, verifications: list[Verification | None]) -> None:
        """Let the planner and the statistics know what the step took and gave; requests that ended leave."""
        times = self.recorder.end_step()
        self.planner.settle(plan, self._stepping, times, verifications, self.drafter.proposal_s if plan.drafts else 0.0)
        self.prefill_budget.record_step(verifications)
        for request in self._stepping:
            request.stats.count_step(plan.width, times)
        self._release_ended()

    def _score_prompts(self) -> list[Request]:
        """Score prompts chunk by chunk, as many as keep pace, and return their requests."""
        requests: list[Request] = []
        most, num_scored = self.prefill_budget.take(), 0
        while num_scored < most and (request := self.scheduler.next_prompt()) is not None:
            if request not in requests:
                requests.append(request)
            self.recorder.start()
            with request.catching_errors():
                if request is not self.scheduler.prefilling:
                    self.scheduler.admit(request)
                num_scored += self._prefill.score_chunk(request, len(self.running), self.planner)
            request.stats.prefill_s += self.recorder.lap()
            if not request.is_running or (request.num_output_tokens and self._has_rows(request)):
                self.scheduler.promote()
                self._release_ended()
        return requests

    def _has_rows(self, request: Request) -> bool:
        """Whether all but the last token of the prefilling request have KV rows."""
        return self.cache.lengths[len(self.running)] == len(request.token_ids) - 1

    def _release_ended(self) -> None:
        for request in self.scheduler.take_ended():
            request.close()
            if request.drafter is not None:
                self.recorder.start()
                with request.catching_errors():
                    request.drafter.finish()
                    if self.slots.prefixes is not None:
                        self.slots.prefixes.keep_learned(self.drafter, request.salt)
                self.planner.end(request, self.recorder.lap())
