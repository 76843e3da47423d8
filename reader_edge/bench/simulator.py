"""Decodes recorded answers with a drafter and no model: draft, accept what was recorded, observe."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from reader_edge.bench.recording import RecordedRequest, RecordedTurn, Successors
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.core import DraftingCore
from reader_edge_runtime.stats import GenerationStats

MAX_DEPTH = 64
_MAX_VOCAB_SIZE = 1 << 31  # ids are checked when a recording is read


class ReplayedRequest:
    """A request of the drafting core that follows a recording, all its turns in one text.

    It learns the recorded tokens, and the successors that the model found likely, where they were recorded. Successors
    after rejected drafts, from which decoding learns too, are in no recording.
    """

    def __init__(self, core: DraftingCore, turn: RecordedTurn) -> None:
        self._core = core
        self._state = core.begin(turn.prompt)
        self._follow(turn)

    @property
    def num_bytes(self) -> int:
        return self._state.num_bytes

    def draft(
        self, max_nodes: int, max_depth: int = MAX_DEPTH, proposals: Sequence[DraftTree | None] = ()
    ) -> DraftTree:
        return self._state.draft(max_nodes, max_depth, proposals)

    def extend(self, turn: RecordedTurn) -> None:
        """The text goes on with another turn's prompt."""
        self._state.extend(turn.prompt)
        self._follow(turn)

    def observe(self, token_ids: Sequence[int]) -> None:
        """The text goes on with the target's tokens."""
        self._state.observe(token_ids)
        if self._turn.successors is not None and self._core.config.is_logits_used:
            self._text += token_ids
            self._learn_successors(self._turn.successors)

    def finish(self) -> None:
        """An answer has ended."""
        self._state.finish()

    def _follow(self, turn: RecordedTurn) -> None:
        self._turn, self._text, self._num_learned = turn, list(turn.prompt), 0

    def _learn_successors(self, successors: Successors) -> None:
        """Learn those of the tokens before the last one, which no pass has scored yet."""
        positions = successors.positions
        num_scored = int(np.searchsorted(positions, len(self._text) - 1))
        new = np.arange(self._num_learned, num_scored)
        for rows in np.split(new, np.flatnonzero(np.diff(positions[new]) != 1) + 1):
            if len(rows):
                first, last = int(positions[rows[0]]), int(positions[rows[-1]])
                chain = DraftTree.chain(self._text[first : last + 1])
                best = successors.top_ids[rows], successors.top_logits[rows]
                scored = ScoredTree(chain, range(len(rows)), first, *best, _MAX_VOCAB_SIZE)
                self._core.successors.learn(scored, self._text)
        self._num_learned = num_scored


class Simulator:
    """Decodes recorded answers with a target that chooses the recorded tokens.

    stats_by_task: by the recording's tasks; seconds are the drafter's, learn_s for answers and prefill_s for prompts.
    draft_us, learn_us, prompt_us: microseconds of each draft, each answer token (an equal share of its step's) and each
        prompt's mean token.
    request: the one decoded last. num_bytes: the most memory the drafter held, where the caller sets it.
    """

    def __init__(
        self,
        begin: Callable[[RecordedTurn], ReplayedRequest],
        draft: Callable[[ReplayedRequest, int], DraftTree],
    ) -> None:
        """begin: starts a request with its first turn's prompt. draft: proposes a tree; its number is how many of the
        answer's tokens a draft may still hold, the last one being the target's own."""
        self._begin = begin
        self._draft = draft
        self.request: ReplayedRequest | None = None
        self.num_bytes = 0
        self.stats_by_task: defaultdict[str, GenerationStats] = defaultdict(GenerationStats)
        self.draft_us: list[float] = []
        self.learn_us: list[float] = []
        self.prompt_us: list[float] = []

    @property
    def stats(self) -> GenerationStats:
        """Of all tasks together."""
        return GenerationStats.total(self.stats_by_task.values())

    def decode(self, request: RecordedRequest) -> None:
        """Decode all answers of a request."""
        stats, self.request = self.stats_by_task[request.task], None
        for turn in request.turns:
            current = self._take_prompt(turn, stats)
            position = 0
            if turn.successors is not None:  # as it was decoded: the pass over the prompt gave the first token
                current.observe(turn.output[:1])
                position = 1
            while position < len(turn.output):
                position += self._step(current, turn.output[position:], stats)
            finishing = time.perf_counter()
            current.finish()
            stats.learn_s += time.perf_counter() - finishing

    def _take_prompt(self, turn: RecordedTurn, stats: GenerationStats) -> ReplayedRequest:
        start = time.perf_counter()
        if self.request is None:
            self.request = self._begin(turn)
        else:
            self.request.extend(turn)
        seconds = time.perf_counter() - start
        stats.prefill_s += seconds
        self.prompt_us.append(1e6 * seconds / max(1, len(turn.prompt)))
        return self.request

    def _step(self, request: ReplayedRequest, output: list[int], stats: GenerationStats) -> int:
        """Draft, accept, observe; returns the number of tokens emitted. output: the answer from here on."""
        start = time.perf_counter()
        tree = self._draft(request, len(output) - 1)
        draft_s = time.perf_counter() - start
        path = _accepted_path(tree, output[:-1])
        start = time.perf_counter()
        request.observe(output[: len(path)])
        learn_s = time.perf_counter() - start
        stats.num_steps += 1
        stats.steps_by_width[len(tree)] += 1
        stats.count_tree(tree, path)
        stats.draft_s += draft_s
        stats.learn_s += learn_s
        self.draft_us.append(1e6 * draft_s)
        self.learn_us += [1e6 * learn_s / len(path)] * len(path)
        return len(path)


def _accepted_path(tree: DraftTree, token_ids: Sequence[int]) -> list[int]:
    """The root, and the nodes below it that are the recorded tokens, as far as they are."""
    path = [0]
    for token_id in token_ids:
        node = tree.child(path[-1], token_id)
        if node < 0:
            break
        path.append(node)
    return path
