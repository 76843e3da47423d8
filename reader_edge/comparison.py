"""Plain against drafted decoding of one prompt: are the tokens the same, and how much sooner do they come?"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

from reader_edge_runtime import Engine, GenerationConfig, GenerationResult, GenerationStats
from reader_edge_runtime.drafting.drafter import RetrievalDrafter
from reader_edge_runtime.engine import Prompt

ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rounds of both ways, in the order they ran."""

    plain: tuple[GenerationResult, ...]
    drafted: tuple[GenerationResult, ...]

    @property
    def is_identical(self) -> bool:
        """Whether every round, plain or drafted, emitted the same tokens."""
        return len({result.token_ids for result in (*self.plain, *self.drafted)}) == 1

    @property
    def plain_tokens_per_s(self) -> float:
        return median(result.stats.tokens_per_s for result in self.plain)

    @property
    def drafted_tokens_per_s(self) -> float:
        return median(result.stats.tokens_per_s for result in self.drafted)

    @property
    def speedup(self) -> float:
        """Ratio of the median decode times per token; 1 where a single token left nothing to decode."""
        plain, drafted = _median_s_per_token(self.plain), _median_s_per_token(self.drafted)
        return plain / drafted if plain and drafted else 1.0

    @property
    def drafted_stats(self) -> GenerationStats:
        """Of the last drafted round; all of them drafted and accepted the same."""
        return self.drafted[-1].stats


def compare(
    engine: Engine,
    prompt: Prompt,
    config: GenerationConfig,
    on_progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Answer a prompt ROUNDS times each way, in alternating order.

    What the engine learned is dropped before every round: an answer seen before would draft itself. The drafter is
    waited for: on a machine that never drafted it is compiled first.
    """
    if isinstance(engine.decoder.drafter, RetrievalDrafter):
        engine.decoder.drafter.wait()
    results: dict[bool, list[GenerationResult]] = {False: [], True: []}
    for number in range(ROUNDS):
        for is_drafted in (number % 2 == 1, number % 2 == 0):
            engine.forget()
            results[is_drafted].append(engine.generate(prompt, replace(config, is_drafted=is_drafted)))
            if on_progress is not None:
                on_progress(sum(map(len, results.values())), 2 * ROUNDS)
    return Comparison(tuple(results[False]), tuple(results[True]))


def _median_s_per_token(results: tuple[GenerationResult, ...]) -> float:
    speeds = [result.stats.tokens_per_s for result in results]
    return median(1 / speed if speed else 0.0 for speed in speeds)
