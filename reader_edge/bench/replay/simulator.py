"""Walking through recorded answers with a drafter, without a model: draft, accept what was recorded, observe."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from reader_edge.bench.recording import RecordedRequest, RecordedTurn
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.stats import GenerationStats


class SimulatedRequest(Protocol):
    """What a drafter knows of one request, all its turns in one text."""

    def extend(self, turn: RecordedTurn, /) -> None:
        """The text goes on with another turn's prompt."""

    def observe(self, token_ids: Sequence[int], /) -> None:
        """The text goes on with what the target said."""

    def finish(self) -> object:
        """An answer has ended."""


Request = TypeVar("Request", bound=SimulatedRequest)


class Simulator(Generic[Request]):
    """Decodes recorded answers with a target that says what was recorded.

    stats_by_task: by the recording's tasks; seconds are the drafter's, learn_s for answers and prefill_s for prompts.
    draft_us, learn_us, prompt_us: microseconds of each draft, each answer token (an equal share of its step's) and each
        prompt's mean token.
    request: the one decoded last. num_bytes: the most memory the drafter held, where the caller tells it.
    """

    def __init__(self, begin: Callable[[RecordedTurn], Request], draft: Callable[[Request, int], DraftTree]) -> None:
        """begin: starts a request with its first turn's prompt. draft: proposes a tree; its number is how many of the
        answer's tokens a draft may still hold, the last one being the target's own."""
        self._begin = begin
        self._draft = draft
        self.request: Request | None = None
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
        for _ in self.answers(request):
            pass

    def answers(self, request: RecordedRequest) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the text before each answer, and the answer, which is decoded when the iteration goes on."""
        stats, self.request = self.stats_by_task[request.task], None
        context: list[int] = []
        for turn in request.turns:
            output = turn.output
            context += turn.prompt
            yield context, output
            context += output
            current = self._take_prompt(turn, stats)
            position = 0
            if turn.successors is not None:  # as it was decoded: the pass over the prompt gave the first token
                current.observe(output[:1])
                position = 1
            while position < len(output):
                position += self._step(current, output[position:], stats)
            finishing = time.perf_counter()
            current.finish()
            stats.learn_s += time.perf_counter() - finishing

    def _take_prompt(self, turn: RecordedTurn, stats: GenerationStats) -> Request:
        start = time.perf_counter()
        if self.request is None:
            self.request = self._begin(turn)
        else:
            self.request.extend(turn)
        seconds = time.perf_counter() - start
        stats.prefill_s += seconds
        self.prompt_us.append(1e6 * seconds / max(1, len(turn.prompt)))
        return self.request

    def _step(self, request: Request, output: list[int], stats: GenerationStats) -> int:
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
    """The root, and the nodes below it that say what came, as far as they do."""
    path = [0]
    for token_id in token_ids:
        node = tree.child(path[-1], token_id)
        if node < 0:
            break
        path.append(node)
    return path
