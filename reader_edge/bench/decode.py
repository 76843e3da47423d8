"""How fast a model decodes here, plainly and drafted, and where a step's time goes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from reader_edge.bench.comparison import Comparison, TimedAnswer, compare
from reader_edge.chat.answer import build_prompt
from reader_edge.terminal.memory import peak_bytes
from reader_edge_runtime import Engine, GenerationConfig, GenerationStats
from reader_edge_runtime.stats import STEP_PARTS

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Way:
    """Plain or drafted decoding of all prompts.

    tokens_per_s: tokens of all prompts over the sum of their median decode times.
    first_token_s: median. stats: the sum of all rounds.
    parts_s: mean seconds of a step by part: those of STEP_PARTS, and "other", the rest of the wall-clock time.
    """

    tokens_per_s: float
    first_token_s: float
    stats: GenerationStats
    parts_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class DecodeBench:
    """What was measured. *_bytes: the package's files, the KV cache, and this process's peak resident memory."""

    prompts: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    plain: Way
    drafted: Way
    package_bytes: int
    kv_bytes: int
    peak_bytes: int

    @property
    def is_identical(self) -> bool:
        """Whether every prompt got the same tokens in every round, plain and drafted."""
        return all(comparison.is_identical for comparison in self.comparisons)

    @property
    def speedup(self) -> float:
        """Over all prompts; 1 where single tokens left nothing to decode."""
        return self.drafted.tokens_per_s / self.plain.tokens_per_s if self.plain.tokens_per_s else 1.0


def bench_decode(
    engine: Engine,
    prompts: Sequence[str],
    config: GenerationConfig,
    num_rounds: int,
    on_progress: OnProgress | None = None,
) -> DecodeBench:
    """Answer every prompt plainly and drafted in turn, learning nothing from one answer for another.

    on_progress: told answers done and answers in all. Raises PromptError or ConfigError.
    """
    comparisons: list[Comparison] = []
    for number, prompt in enumerate(prompts):
        on_rounds = _shifted(on_progress, number, len(prompts))
        built = build_prompt(engine, prompt, None, is_raw=False)
        comparisons.append(compare(engine, built, config, num_rounds, on_rounds))
    return DecodeBench(
        tuple(prompts),
        tuple(comparisons),
        _way([comparison.plain for comparison in comparisons]),
        _way([comparison.drafted for comparison in comparisons]),
        sum(entry.num_bytes for entry in engine.package.manifest.files.values()),
        engine.decoder.cache.num_bytes,
        peak_bytes(),
    )


def _shifted(on_progress: OnProgress | None, number: int, num_prompts: int) -> OnProgress | None:
    """Report the progress of one prompt as progress through all of them."""
    if on_progress is None:
        return None
    return lambda done, total: on_progress(number * total + done, num_prompts * total)


def _way(rounds_by_prompt: Sequence[Sequence[TimedAnswer]]) -> Way:
    decode_s = sum(median(answer.decode_s for answer in rounds) for rounds in rounds_by_prompt)
    num_decoded = sum(len(rounds[0].token_ids) - 1 for rounds in rounds_by_prompt)
    answers = [answer for rounds in rounds_by_prompt for answer in rounds]
    stats = GenerationStats()
    for answer in answers:
        stats.add(answer.stats)
    num_steps = max(1, stats.num_steps)
    parts_s = {part.removesuffix("_s"): getattr(stats, part) / num_steps for part in STEP_PARTS}
    parts_s["other"] = sum(answer.decode_s for answer in answers) / num_steps - sum(parts_s.values())
    return Way(
        num_decoded / decode_s if num_decoded else 0.0,
        median(answer.first_token_s for answer in answers),
        stats,
        parts_s,
    )
