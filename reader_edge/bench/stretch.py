"""Stretches of recorded answers: the parts that are timed on a model."""

from collections.abc import Sequence
from dataclasses import dataclass

from reader_edge.bench.recording import RecordedRequest
from reader_edge_runtime.measuring.verify_cost import MAX_WIDTH
from reader_edge_runtime.stats import GenerationStats


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a recorded answer: it starts `start` tokens into the output of a request's turn."""

    request: int
    turn: int
    start: int


@dataclass(frozen=True, slots=True)
class StretchTimes:
    """A stretch, decoded plainly and drafted.

    past: tokens before it. *_s: wall-clock seconds, without the pass that gives the first token. plain, drafted: the
    statistics of that time; a drafted step may go beyond the stretch.
    """

    stretch: Stretch
    task: str
    past: int
    plain_s: float
    drafted_s: float
    plain: GenerationStats
    drafted: GenerationStats


def choose_stretches(
    requests: Sequence[RecordedRequest], num_stretches: int, max_tokens: int, max_context: int
) -> tuple[list[Stretch], int]:
    """Stretches spread evenly over a recording, in order, and how many candidates exceed the model's context.

    Candidates are all answers, cut into stretches of max_tokens: every token is as likely to be timed.
    """
    stretches, num_left_out = [], 0
    for r, request in enumerate(requests):
        past = 0
        for t, (prompt, output) in enumerate(request.turns):
            past += len(prompt)
            starts = range(0, max(1, len(output) - 1), max_tokens)  # the prefill gives a stretch's first token
            held = [start for start in starts if past + start + max_tokens + MAX_WIDTH <= max_context]
            stretches += [Stretch(r, t, start) for start in held]
            num_left_out += len(starts) - len(held)
            past += len(output)
    count = min(num_stretches, len(stretches))
    return [stretches[(2 * i + 1) * len(stretches) // (2 * count)] for i in range(count)], num_left_out
