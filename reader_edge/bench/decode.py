"""How fast a model decodes here, plainly and drafted, and what memory that takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reader_edge.bench.comparison import Comparison, Way, compare
from reader_edge.chat.answer import build_prompt
from reader_edge.terminal.memory import peak_bytes
from reader_edge_runtime import Engine, GenerationConfig


@dataclass(frozen=True, slots=True)
class DecodeBench:
    """What was measured, by prompt and overall.

    *_bytes: the package's files, the KV cache, and this process's peak resident memory.
    """

    prompts: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    overall: Comparison
    package_bytes: int
    kv_bytes: int
    peak_bytes: int


def bench_decode(
    engine: Engine,
    prompts: Sequence[str],
    config: GenerationConfig,
    num_rounds: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> DecodeBench:
    """Answer every prompt plainly and drafted in turn, learning nothing from one answer for another.

    on_progress: told answers done and answers in all. Raises PromptError or ConfigError.
    """
    comparisons = []
    for number, prompt in enumerate(prompts):

        def on_rounds(done: int, total: int, number: int = number) -> None:
            on_progress(number * total + done, len(prompts) * total)

        built = build_prompt(engine, prompt, None, is_raw=False)
        comparisons.append(compare(engine, built, config, num_rounds, on_rounds))
    plain, drafted = zip(*((each.plain.rounds[0], each.drafted.rounds[0]) for each in comparisons), strict=True)
    return DecodeBench(
        tuple(prompts),
        tuple(comparisons),
        Comparison(Way(plain), Way(drafted)),
        sum(entry.num_bytes for entry in engine.package.manifest.files.values()),
        engine.decoder.cache.num_bytes,
        peak_bytes(),
    )
