"""Prefill: a prompt is scored chunk by chunk, and its last chunk chooses the first token of the answer."""

import math
from collections.abc import Sequence
from functools import partial

from reader_edge_runtime.decoding.draft_permission import DraftPermission
from reader_edge_runtime.decoding.planning.planner import Planner
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.scorer import Scorer
from reader_edge_runtime.decoding.slots import LOOSE_END, KeptText, Slots
from reader_edge_runtime.decoding.verification import Verification
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.forward_result import ForwardResult

_MOST_AT_ONCE = 2  # budgets: answers whose drafts were refused wait for them as well


class PrefillBudget:
    """Keeps prompts in step with tokens: a drafted step gives several and takes longer, and would hold prompts up.

    limit: prompt tokens for each token of the running answers, in the mean, after which no further chunk is begun, so
    that nobody waits long; None scores all prompts that find a slot, which is soonest for requests that came together.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        self._num_due = 0.0  # budgets

    def record_step(self, verifications: Sequence[Verification | None]) -> None:
        """Count the tokens that a step gave."""
        self._num_due += sum(len(each.token_ids) for each in verifications if each is not None) / len(verifications)

    def take(self) -> float:
        """Prompt tokens after which no further chunk is begun now: the whole budgets that are due, one or two."""
        if self.limit is None:
            return math.inf
        num_taken = min(max(1, int(self._num_due)), _MOST_AT_ONCE)
        self._num_due = min(max(0.0, self._num_due - num_taken), 1.0)
        return num_taken * self.limit


_MOST_PROMPT_LOGITS = 64  # tokens of a prompt whose logits are read in one pass: a row of them may take a megabyte


class Prefill:
    """Scores prompts. chunk_tokens: of one in a pass, at most; 0 leaves that to the target."""

    def __init__(self, scorer: Scorer, slots: Slots, permission: DraftPermission, chunk_tokens: int) -> None:
        self._scorer = scorer
        self._slots = slots
        self._permission = permission
        self._chunk_tokens = chunk_tokens

    def score_chunk(self, request: Request, slot: int, planner: Planner) -> int:
        """Write the KV rows of a prompt's next chunk, and return its tokens; the last one emits the first token.

        Of an answer that goes on without the slot it had, prompt and answer are scored again, and nothing is emitted.

        planner: decides of which rows the drafter learns.
        """
        cache = self._scorer.cache
        length = cache.lengths[slot]
        if length == request.prefill_end:
            return 0
        is_read, images = request.is_reading_prompt, request.images
        token_ids = request.token_ids[length : self._chunk_end(request, length)]
        tree = DraftTree.chain(token_ids if images is None else images.graph_ids(token_ids))
        rows = planner.prompt_rows(request, length, len(tree), self._num_wanted_rows())
        is_again = request.num_output_tokens > 0
        is_last = length + len(tree) == request.prefill_end
        scored = range(len(tree)) if is_read else rows
        num_kept = max(len(tree) - LOOSE_END, 0) if is_last else len(tree)
        is_chosen = (is_last and not is_again) or is_read
        num_left = request.prefill_end - length - len(tree)
        is_learned = (
            request.drafter is not None
            and not is_again
            and images is None
            and num_left < self._scorer.drafter.num_harvested_states
        )
        if images is not None and request.on_progress is not None:
            images.on_wait = partial(request.on_progress, length, request.num_prompt_tokens)
        image_rows = None if images is None else images.rows(length, length + len(tree))
        result = self._scorer.score(slot, tree, scored, request, num_kept, is_chosen, is_learned, image_rows)
        cache.commit(slot, range(len(tree)))
        prompt = KeptText(request.token_ids[: request.prefill_end], request.salt)
        self._slots.note_chunk(length, prompt)
        request.num_read_tokens = min(length + len(tree), request.num_prompt_tokens)
        if is_read:
            request.read_prompt(result, length, len(tree))
            result = result.from_row(rows.start)
        if is_last and images is not None:
            images.drop()
        if is_again:
            return len(tree)
        if request.on_progress is not None:
            request.on_progress(request.num_read_tokens, request.num_prompt_tokens)
        if is_last:
            request.acceptance.read_prompt(result, len(rows) - 1)
            self._scorer.take_choice(request, result, len(rows) - 1)
        if request.drafter is not None:
            self._learn(request, result, tree, rows, length)
        return len(tree)

    def _learn(self, request: Request, result: ForwardResult, tree: DraftTree, rows: range, length: int) -> None:
        """Let the drafter know a chunk's scores; behind an image, those of the text that follows it."""
        assert request.drafter is not None
        if request.images is not None:
            first = request.images.text_start(length, length + len(tree)) - length
            result = result.from_row(max(first - rows.start, 0))
            rows = range(max(rows.start - first, 0), len(tree) - first)
            if not rows:
                return
            length += first - request.images.num_before(length + first)
            tree = DraftTree.chain(tree.token_ids[first:])
        vocab_size = self._scorer.target.manifest.vocab_size
        request.drafter.observe(result.scored(0, tree, rows, length, vocab_size))

    def _chunk_end(self, request: Request, length: int) -> int:
        size = self._chunk_tokens or self._scorer.target.prefill_chunk(length)
        size = min(size, _MOST_PROMPT_LOGITS) if request.is_reading_prompt else size
        end = self._slots.chunk_end(length, size, request.prefill_end)
        return end if request.images is None else request.images.chunk_end(length, end)

    def _num_wanted_rows(self) -> int:
        """Rows of a prompt's end that the drafter would learn from; the first token is chosen from the last."""
        num_wanted, most = self._scorer.drafter.num_harvested_rows, self._permission.max_rows
        return num_wanted if most is None else min(num_wanted, most)
