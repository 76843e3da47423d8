"""Plain against drafted decoding of one prompt: are the tokens the same, and how much sooner do they come?"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

from reader_edge_runtime import Engine, GenerationConfig, GenerationStats
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.engine import Prompt

ROUNDS = 3


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """An answer, with wall-clock seconds to its first token, and from there to its end."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stats: GenerationStats
    first_token_s: float
    decode_s: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first one, per second of `decode_s`; 0 where the first was the last."""
        return (len(self.token_ids) - 1) / self.decode_s if len(self.token_ids) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Answers of every round, plain and drafted, in the order they ran."""

    plain: tuple[TimedAnswer, ...]
    drafted: tuple[TimedAnswer, ...]

    @property
    def is_identical(self) -> bool:
        """Whether every round, plain or drafted, emitted the same tokens."""
        return len({answer.token_ids for answer in (*self.plain, *self.drafted)}) == 1

    @property
    def plain_tokens_per_s(self) -> float:
        return median(answer.tokens_per_s for answer in self.plain)

    @property
    def drafted_tokens_per_s(self) -> float:
        return median(answer.tokens_per_s for answer in self.drafted)

    @property
    def speedup(self) -> float:
        """Ratio of the median speeds; 1 where a single token left nothing to decode."""
        plain = self.plain_tokens_per_s
        return self.drafted_tokens_per_s / plain if plain else 1.0

    @property
    def drafted_stats(self) -> GenerationStats:
        """Of the last drafted round; all of them drafted and accepted the same."""
        return self.drafted[-1].stats


def compare(
    engine: Engine,
    prompt: Prompt,
    config: GenerationConfig,
    num_rounds: int = ROUNDS,
    on_progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Answer a prompt several times plainly and drafted, in alternating order.

    Before every answer the engine forgets what it learned, or the answer before would draft it. Waits for the drafter,
    which a machine that never drafted compiles first. on_progress: told answers done and answers in all.
    """
    if isinstance(engine.decoder.drafter, RetrievalDrafter):
        engine.decoder.drafter.wait()
    answers: dict[bool, list[TimedAnswer]] = {False: [], True: []}
    for number in range(num_rounds):
        for is_drafted in (number % 2 == 1, number % 2 == 0):
            engine.forget()
            answers[is_drafted].append(_answer(engine, prompt, replace(config, is_drafted=is_drafted)))
            if on_progress is not None:
                on_progress(sum(map(len, answers.values())), 2 * num_rounds)
    return Comparison(tuple(answers[False]), tuple(answers[True]))


def _answer(engine: Engine, prompt: Prompt, config: GenerationConfig) -> TimedAnswer:
    start = time.perf_counter()
    chunks = engine.stream(prompt, config)
    taken = [next(chunks)]
    first = time.perf_counter()
    taken += chunks
    end = time.perf_counter()
    return TimedAnswer(
        "".join(chunk.text for chunk in taken),
        tuple(token_id for chunk in taken for token_id in chunk.token_ids),
        taken[-1].finish_reason or "cancelled",
        taken[-1].stats or GenerationStats(),
        first - start,
        end - first,
    )
