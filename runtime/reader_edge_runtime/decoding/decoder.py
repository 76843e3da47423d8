"""The decoder: draft, forward, verify, commit, for all running sequences. It knows token ids only."""

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as TokenIds

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.config import EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.acceptance.exact import Verification, verify
from reader_edge_runtime.decoding.acceptance.recheck import is_near_tie
from reader_edge_runtime.decoding.choosing.sampler import Sampler
from reader_edge_runtime.decoding.planning.node_budget import NodeBudget
from reader_edge_runtime.decoding.sequence import Sequence
from reader_edge_runtime.decoding.slots import Slots
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import Drafter, DraftWish
from reader_edge_runtime.errors import ReaderEdgeError
from reader_edge_runtime.measuring.verify_cost import MAX_WIDTH
from reader_edge_runtime.target import ForwardResult, Pass, Target

Float32Array = npt.NDArray[np.float32]
_FIRST_CAPACITY = 256


class Decoder:
    """Sequences in, tokens out. Not thread-safe: one caller at a time.

    running[i] owns KV slot i. Every running sequence has all but its last token (the pending one) in the cache.
    budget: how many nodes each pass gets. max_harvested_rows: logit rows of a prompt that may be read for drafting.
    is_drafting: False decodes every request plainly.
    near_tie_margin: where the two best logits of a wide pass are closer, a single-token pass decides; 0 is off.
    on_logits: called with (sequence, logits (V,)) before each choice; for tools that compare runs bit by bit.
    """

    def __init__(self, target: Target, drafter: Drafter, config: EngineConfig) -> None:
        self.target = target
        self.drafter = drafter
        self.budget = NodeBudget(MAX_WIDTH)
        self.max_harvested_rows = target.manifest.max_context
        self.config = config
        self.cache = target.new_cache(1, _FIRST_CAPACITY)
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.is_drafting = True
        self.near_tie_margin = 0.0
        self.on_logits: Callable[[Sequence, Float32Array], None] | None = None
        self._slots = Slots(self.cache, config.max_batch)

    def submit(
        self,
        prompt_token_ids: TokenIds[int],
        config: GenerationConfig,
        is_stop: Callable[[int], bool] | None = None,
        sampler: Sampler | None = None,
    ) -> Sequence:
        """Queue a request; `step` decodes it. is_stop: told each emitted token, True ends the answer.

        sampler: chooses in place of the one that config.sampling describes. Raises PromptError or ConfigError.
        """
        sequence = Sequence(prompt_token_ids, config, self.target.manifest, self.budget.begin(), is_stop, sampler)
        if config.is_drafted and self.is_drafting:
            sequence.drafter = self.drafter.begin(sequence.token_ids)
        self.waiting.append(sequence)
        return sequence

    def step(self) -> list[Sequence]:
        """Emit at least one token for every running sequence; returns those that got some.

        An interrupted step cancels what was running: its tokens and its cache rows might not match any more.
        """
        try:
            return self._step()
        except BaseException:
            for sequence in list(self.running):
                self.cancel(sequence)
            raise

    def _step(self) -> list[Sequence]:
        started = self._start_waiting()
        if started or not self.running:
            return started
        start = time.perf_counter()
        past = max(self.cache.lengths[: len(self.running)])
        num_started = sum(sequence.has_drafted for sequence in self.running)
        drafts = self._draft(past)
        num_started = sum(sequence.has_drafted for sequence in self.running) - num_started
        trees = self._cut(drafts, past)
        drafted = time.perf_counter()
        result = self._forward(0, self.running, trees, [range(len(tree)) for tree in trees])
        forwarded = time.perf_counter()
        verifications = [
            self._verify(result, *each) for each in zip(self.running, trees, range(len(trees)), strict=True)
        ]
        verified = time.perf_counter()
        for slot, verification in enumerate(verifications):
            verifications[slot] = self._commit(slot, verification)
        committed = time.perf_counter()
        for b, (tree, verification) in enumerate(zip(trees, verifications, strict=True)):
            self._learn(b, drafts[b], tree, verification, result)
        learned = time.perf_counter()
        beside_s = drafted - start + learned - verified
        width, num_drafted = max(map(len, trees)), sum(draft is not None for draft in drafts)
        num_accepted = sum(verification.num_accepted_tokens for verification in verifications)
        pass_s = forwarded - drafted
        self.budget.learn(len(trees), width, past, pass_s, beside_s, num_drafted, num_started, num_accepted)
        advanced = list(self.running)
        for sequence in advanced:
            sequence.stats.count_step(width, (start, drafted, forwarded, verified, committed, learned))
        self._release_finished()
        return advanced

    def cancel(self, sequence: Sequence) -> None:
        """Give up on a sequence; the cache stays right for the others and for reuse."""
        if sequence.finish_reason is None:
            sequence.finish_reason = "cancelled"
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        self._release_finished()

    def skip_prefill(self, token_ids: list[int]) -> None:
        """Behave as if these tokens were in the cache already, while nothing runs: for measurements at a given length.

        Passes take as long as ever, but what they compute means nothing. What came before is taken to have paid for
        drafts.
        """
        self.budget.skipped(len(token_ids))
        self.cache.reserve(self.cache.num_slots, len(token_ids) + 1)
        self._slots.fill(token_ids)

    def forget(self) -> None:
        """Drop all that past requests left behind: cached prefixes and the drafter's history."""
        self._slots.forget()
        self.drafter.forget()

    def _start_waiting(self) -> list[Sequence]:
        """Prefill waiting sequences while slots are free; each emits its first token."""
        started = []
        while self.waiting and not self._slots.is_full:
            sequence = self.waiting.popleft()
            start = time.perf_counter()
            sequence.stats.num_reused_tokens = self._slots.acquire(sequence.token_ids)
            self.running.append(sequence)
            self._prefill(sequence, len(self.running) - 1)
            prefill_s = time.perf_counter() - start
            sequence.stats.prefill_s += prefill_s
            num_tokens = sequence.num_remaining_tokens if sequence.drafter is not None else 0
            self.budget.prefilled(len(sequence.token_ids), prefill_s, num_tokens)
            started.append(sequence)
        self._release_finished()
        return started

    def _prefill(self, sequence: Sequence, slot: int) -> None:
        prompt = sequence.token_ids
        # Once for the whole prompt and some of the answer: growing copies, and holds old and new rows together.
        capacity = min(len(prompt) + _FIRST_CAPACITY, self.target.manifest.max_context)
        self.cache.reserve(self.cache.num_slots, capacity)
        while True:
            length = self.cache.lengths[slot]
            chunk = self.config.prefill_chunk or self.target.prefill_chunk(length)
            tree = DraftTree.chain(prompt[length : length + chunk])
            rows = self._prefill_rows(sequence, length, len(tree))
            is_last = length + len(tree) == len(prompt)
            result = self._forward(slot, [sequence] if is_last else [], [tree], [rows])
            self.cache.commit(slot, list(range(len(tree))))
            if is_last:
                break
            self._observe(sequence, tree, length, rows, result, 0)
        token_id = self._choose(sequence, result, 0, -1)
        sequence.append(token_id)
        self._observe(sequence, tree, length, rows, result, 0)

    def _prefill_rows(self, sequence: Sequence, length: int, num_nodes: int) -> range:
        """The nodes of a prompt chunk whose logits are wanted: the last, and more of the prompt's end for drafting."""
        is_harvested = sequence.drafter is not None and not sequence.guard.is_in_vain
        num_harvested = min(self.drafter.num_harvested_rows, self.max_harvested_rows) if is_harvested else 0
        first = sequence.num_prompt_tokens - max(num_harvested, 1) - length
        return range(min(max(first, 0), num_nodes - 1), num_nodes)

    def _draft(self, past: int) -> list[DraftTree | None]:
        """Each running sequence's draft; None where it rests, or may not draft."""
        # A padded tree needs rows in every slot, so the fullest slot bounds all trees.
        room = self.target.manifest.max_context - past
        if room < 2 or self.budget.is_plain_due:
            return [None] * len(self.running)
        drafts: list[DraftTree | None] = [None] * len(self.running)
        wishes: dict[int, DraftWish] = {}
        num_started = 0
        for b, sequence in enumerate(self.running):
            max_depth = sequence.num_remaining_tokens - 1
            is_first = not sequence.has_drafted
            if (
                sequence.drafter is None
                or not self.drafter.is_ready
                or max_depth < 1
                or (is_first and not self.budget.pays_start(max_depth))
                or sequence.takes_rest()
                or not self.budget.affords(len(wishes) + 1, num_started + is_first)
            ):
                continue
            num_started += is_first
            sequence.has_drafted = True
            wishes[b] = DraftWish(sequence.drafter, min(room, self.budget.max_drafted), max_depth)
        for b, draft in zip(wishes, self.drafter.draft(list(wishes.values())), strict=True):
            if isinstance(draft, ReaderEdgeError):
                raise draft
            draft.check(self.running[b].token_ids[-1], self.target.manifest.vocab_size, room)
            drafts[b] = draft
        return drafts

    def _cut(self, drafts: list[DraftTree | None], past: int) -> list[DraftTree]:
        """The trees to verify: what of each draft is worth a place in the pass."""
        roots = [DraftTree.chain([sequence.token_ids[-1]]) for sequence in self.running]
        if not any(drafts):
            return roots
        trees = [draft or root for draft, root in zip(drafts, roots, strict=True)]
        guards = [sequence.guard if draft else None for sequence, draft in zip(self.running, drafts, strict=True)]
        width = self.budget.choose([tree.values for tree in trees], guards, past)
        return [tree.best(width) for tree in trees]

    def _forward(
        self, first_slot: int, choosing: list[Sequence], trees: list[DraftTree], rows: list[range]
    ) -> ForwardResult:
        """A pass that tells what the sequences in `choosing` need for their next tokens."""
        wants_logits = self.on_logits is not None or not all(each.sampler.takes_best for each in choosing)
        is_scored = any(each.config.is_scored for each in choosing)
        return self.target.forward(self.cache, Pass(first_slot, trees, rows, wants_logits, is_scored))

    def _verify(self, result: ForwardResult, sequence: Sequence, tree: DraftTree, b: int) -> Verification:
        is_alone = len(self.running) == 1 and len(tree) == 1
        margin = 0.0 if is_alone or not sequence.sampler.takes_best else self.near_tie_margin

        def choose(node: int) -> int | None:
            return None if is_near_tie(result, b, node, margin) else self._choose(sequence, result, b, node)

        return verify(tree, choose, sequence.append)

    def _commit(self, slot: int, verification: Verification) -> Verification:
        """Keep the walked rows; take a choice that was left undecided from a pass of the pending token alone."""
        if not verification.is_undecided:
            self.cache.commit(slot, verification.path)
            return verification
        self.cache.commit(slot, verification.path[:-1])
        sequence = self.running[slot]
        sequence.stats.num_redecided_tokens += 1
        result = self._forward(slot, [sequence], [DraftTree.chain([sequence.token_ids[-1]])], [range(1)])
        self.cache.commit(slot, [0])
        token_id = self._choose(sequence, result, 0, 0)
        sequence.append(token_id)
        return verification.decided(token_id)

    def _choose(self, sequence: Sequence, result: ForwardResult, b: int, row: int) -> int:
        """The sequence's next token, from row (b, row) of a pass."""
        token_id = self._chosen(sequence, result, b, row)
        if sequence.config.is_scored:
            sequence.stats.log_probability += result.log_probability(b, row, token_id)
        return token_id

    def _chosen(self, sequence: Sequence, result: ForwardResult, b: int, row: int) -> int:
        """The sampler's choice; where the best token is all it takes, the logits stay unread."""
        if self.on_logits is None and sequence.sampler.takes_best:
            return sequence.sampler.take_best(int(result.top_ids[b, row, 0]), len(sequence.token_ids))
        logits = result.wanted_logits[b, row]
        if self.on_logits is not None:
            self.on_logits(sequence, logits)
        return sequence.sampler.choose(logits, len(sequence.token_ids))

    def _observe(
        self, sequence: Sequence, tree: DraftTree, root: int, rows: range, result: ForwardResult, b: int
    ) -> None:
        """Hand the drafter what the target thought of every row, rejected ones included.

        root: position of the tree's root in the sequence.
        """
        if sequence.drafter is not None:
            top_ids, top_logits = result.top_ids[b, : len(rows)].copy(), result.top_logits[b, : len(rows)].copy()
            vocab_size = self.target.manifest.vocab_size
            sequence.drafter.observe(ScoredTree(tree, rows, root, top_ids, top_logits, vocab_size))

    def _learn(
        self, b: int, draft: DraftTree | None, tree: DraftTree, verification: Verification, result: ForwardResult
    ) -> None:
        """Count what happened to running sequence b, and let its drafter learn."""
        sequence = self.running[b]
        sequence.stats.count_tree(tree, verification.path)
        if draft is not None:
            sequence.guard.learn(draft, tree, verification)
            sequence.stats.num_vain_drafts += len(tree) == 1
            root = len(sequence.token_ids) - len(verification.token_ids) - 1
            self._observe(sequence, tree, root, range(len(tree)), result, b)

    def _release_finished(self) -> None:
        for slot in reversed(range(len(self.running))):
            sequence = self.running[slot]
            if sequence.finish_reason is not None:
                self._slots.release(slot, sequence.token_ids)
                self.running[slot] = self.running[-1]
                self.running.pop()
                if sequence.drafter is not None:
                    start = time.perf_counter()
                    sequence.drafter.finish()
                    self.budget.end(sequence.guard, time.perf_counter() - start, sequence.has_drafted)
