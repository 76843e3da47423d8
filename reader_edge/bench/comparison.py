"""Compares plain and drafted decoding of prompts: whether the tokens are equal, and how long they take."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from reader_edge.prompts import EvalPrompt, by_category
from reader_edge.terminal.memory import peak_bytes
from reader_edge_runtime import Engine, GenerationConfig, GenerationStats
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.stats import STEP_PARTS
from reader_edge_runtime.text.conversation import Encodable

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


@dataclass(frozen=True, slots=True)
class TimedRounds:
    """Plain or drafted decoding. rounds: the answers to each prompt, in the order they ran."""

    rounds: tuple[tuple[TimedAnswer, ...], ...]

    @property
    def answers(self) -> list[TimedAnswer]:
        """The answers to all prompts."""
        return [answer for rounds in self.rounds for answer in rounds]

    @property
    def num_tokens(self) -> int:
        """Tokens of one round."""
        return sum(len(rounds[0].token_ids) for rounds in self.rounds)

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first ones, over the sum of the prompts' median decode times; 0 where there are none."""
        num_decoded = self.num_tokens - len(self.rounds)
        decode_s = sum(median(answer.decode_s for answer in rounds) for rounds in self.rounds)
        return num_decoded / decode_s if num_decoded else 0.0

    @property
    def answer_s(self) -> list[float]:
        """Of each prompt, the median of its answers' whole seconds."""
        return [median(answer.first_token_s + answer.decode_s for answer in rounds) for rounds in self.rounds]

    @property
    def first_token_s(self) -> float:
        """Median over all answers."""
        return median(answer.first_token_s for answer in self.answers)

    @property
    def stats(self) -> GenerationStats:
        """Of all rounds together."""
        return GenerationStats.total(answer.stats for answer in self.answers)

    @property
    def parts_s(self) -> dict[str, float]:
        """Mean seconds of a step by part: those of STEP_PARTS, and "other", the rest of the wall-clock time."""
        stats = self.stats
        num_steps = max(1, stats.num_steps)
        parts_s = {part.removesuffix("_s"): getattr(stats, part) / num_steps for part in STEP_PARTS}
        return parts_s | {"other": sum(each.decode_s for each in self.answers) / num_steps - sum(parts_s.values())}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same prompts in both ways."""

    plain: TimedRounds
    drafted: TimedRounds

    @property
    def is_identical(self) -> bool:
        """Whether every prompt got the same tokens in every round, plain and drafted."""
        rounds_by_prompt = zip(self.plain.rounds, self.drafted.rounds, strict=True)
        return all(len({answer.token_ids for answer in plain + drafted}) == 1 for plain, drafted in rounds_by_prompt)

    @property
    def speedup(self) -> float:
        """Ratio of the speeds; 1 where single tokens left nothing to decode."""
        plain = self.plain.tokens_per_s
        return self.drafted.tokens_per_s / plain if plain else 1.0

    @property
    def answer_speedup(self) -> float:
        """The median prompt's seconds from asking to the last token, plain over drafted."""
        pairs = zip(self.plain.answer_s, self.drafted.answer_s, strict=True)
        return median(plain / drafted for plain, drafted in pairs)


@dataclass(frozen=True, slots=True)
class DecodeBench:
    """By question. *_bytes: the package's files, the KV cache, and this process's peak resident memory.

    sets: by what engines draft from that took their turns, their comparisons with the same plain answers.
    """

    questions: tuple[EvalPrompt, ...]
    comparisons: tuple[Comparison, ...]
    sets: dict[str, tuple[Comparison, ...]]
    package_bytes: int
    kv_bytes: int
    peak_bytes: int

    @property
    def overall(self) -> Comparison:
        """All questions together."""
        return together(self.comparisons)

    @property
    def by_category(self) -> dict[str, Comparison]:
        """The questions of each category together; empty where there are no categories."""
        return self.together_by_category(self.comparisons)

    def together_by_category(self, comparisons: Sequence[Comparison]) -> dict[str, Comparison]:
        """The same of other comparisons, such as a set's."""
        return {name: together(group) for name, group in by_category(self.questions, comparisons).items()}


def compare(
    engine: Engine,
    prompt: Encodable,
    config: GenerationConfig,
    num_rounds: int = ROUNDS,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Answer a prompt several times plainly and drafted, in alternating order, learning nothing for the next answer.

    Waits for the drafter, which a machine that never drafted compiles first. on_progress: gets answers done and in all.
    """
    (comparison,) = compare_engines([engine], prompt, config, num_rounds, on_progress)
    return comparison


def compare_engines(
    engines: Sequence[Engine],
    prompt: Encodable,
    config: GenerationConfig,
    num_rounds: int,
    on_progress: Callable[[int, int], None],
) -> list[Comparison]:
    """`compare` of several engines of one model, each with its own drafts, beside the plain answers of the first."""
    for engine in engines:
        wait_for_drafter(engine)
    ways = [(engines[0], replace(config, is_drafted=False))]
    ways += [(engine, replace(config, is_drafted=True)) for engine in engines]
    answers: list[list[TimedAnswer]] = [[] for _ in ways]
    for number in range(num_rounds):
        order = range(len(ways)) if number % 2 == 0 else reversed(range(len(ways)))
        for way in order:
            engine, way_config = ways[way]
            engine.forget()
            answers[way].append(_answer(engine, prompt, way_config))
            on_progress(sum(map(len, answers)), len(ways) * num_rounds)
    plain, *drafted = (TimedRounds((tuple(rounds),)) for rounds in answers)
    return [Comparison(plain, each) for each in drafted]


def wait_for_drafter(engine: Engine) -> None:
    """Until it drafts: its machine code may still be loaded or compiled."""
    if isinstance(engine.decoder.drafter, RetrievalDrafter):
        engine.decoder.drafter.wait()


def bench_decode(
    engine: Engine,
    questions: Sequence[EvalPrompt],
    config: GenerationConfig,
    num_rounds: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    sets: Mapping[str, Engine] | None = None,
) -> DecodeBench:
    """`compare` on each question. Raises PromptError or ConfigError.

    sets: engines of the same model that take their turns too, by what they draft from; the first may be one of them.
    """
    sets = sets or {}
    engines = list(dict.fromkeys([engine, *sets.values()]))
    comparisons = []
    for number, question in enumerate(questions):

        def on_rounds(done: int, total: int, number: int = number) -> None:
            on_progress(number * total + done, len(questions) * total)

        comparisons.append(compare_engines(engines, question.prompt, config, num_rounds, on_rounds))
    of_engine = dict(zip(engines, zip(*comparisons, strict=True), strict=True))
    return DecodeBench(
        tuple(questions),
        of_engine[engine],
        {names: of_engine[each] for names, each in sets.items()},
        engine.package.manifest.num_bytes,
        engine.decoder.num_kv_bytes,
        peak_bytes(),
    )


def together(comparisons: Sequence[Comparison]) -> Comparison:
    """One comparison of several prompts."""
    plain, drafted = zip(*((each.plain.rounds[0], each.drafted.rounds[0]) for each in comparisons), strict=True)
    return Comparison(TimedRounds(plain), TimedRounds(drafted))


def _answer(engine: Engine, prompt: Encodable, config: GenerationConfig) -> TimedAnswer:
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
