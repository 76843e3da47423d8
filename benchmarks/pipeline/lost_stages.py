"""Kill and silence stages at random moments of answers: does any token change, and how long is the wait?

    python -m benchmarks.pipeline.lost_stages [PACKAGE] [--stages 2,3] [--kills 200] [--silences 50] [--seed 1]
        [--spares]

Each round answers four prompts, greedy and sampled, drafted and plain, while a random stage is killed and started
again, or stopped for some seconds and then let go on, or killed. In every other round they come together; else one
after the other, and their drafts go in two passes behind each other, cut anywhere. With spares, each stage has a spare
box, and what is killed or stopped comes back when the round is over. Answers must be those of one box, or end with one
sentence that names a stage. What one waits is the longest time between two tokens of a round's answers.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.pipeline.served_stages import ServedStages
from reader_edge.verify.drafters import RandomWidths
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig, GenerationConfig, ReaderEdgeError, SamplingConfig

_DEMO = Path(__file__).resolve().parents[2] / "models" / "demo" / "package"
_SILENT_S = 4.0
_KINDS = "kill", "silence, then on", "silence, then kill"
_KINDS_WITH_SPARES = "kill, spare goes on", "silence, spare goes on"
_PROMPTS = ("# tar\n", "# git commit\n", "# ls\n", "# find\n")
_CONFIGS = [
    GenerationConfig(
        max_tokens=300,
        ignores_eos=True,
        is_drafted=number < 2,
        sampling=SamplingConfig(temperature=0.8 * (number % 2), seed=number),
    )
    for number in range(len(_PROMPTS))
]


@dataclass(frozen=True, slots=True)
class LossRound:
    """kind: what happens, see _KINDS. wait_s: the longest between two tokens."""

    num_stages: int
    kind: str
    is_same: bool
    sentence: str
    wait_s: float


class _Clock(threading.Thread):
    """now_s: seconds in which this process ran, without those in which it was stopped, as by a suspend."""

    now_s = 0.0

    def run(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(0.01)
            now = time.monotonic()
            self.now_s += min(now - last, 0.5)
            last = now


_CLOCK = _Clock(daemon=True)


def main() -> None:
    options = _options()
    _CLOCK.start()
    warnings.simplefilter("ignore", RuntimeWarning)
    config = EngineConfig(threads=1, is_calibrated=False)
    rng, rounds = np.random.default_rng(options.seed), list[LossRound]()
    expected = [list(text) for text, _ in asyncio.run(_answers(Engine.load(options.package, config), True))]
    with tempfile.TemporaryDirectory() as place:
        for num_stages in options.stages:
            kinds = _kinds(options)[options.stages.index(num_stages) :: len(options.stages)]
            rng.shuffle(kinds)
            folder = Path(place) / str(num_stages)
            with ServedStages(options.package, folder, num_stages, has_spares=options.spares) as stages:
                engine = _load(stages.folder, config)
                for kind in kinds:
                    if options.spares:  # which takes first boxes again, not those of the last round
                        engine = _load(stages.folder, config)
                    rounds.append(_round(engine, stages, kind, num_stages, expected, rng, len(rounds) % 2 > 0))
                    print(f"{len(rounds)}: {rounds[-1]}", file=sys.stderr, flush=True)
    _report(rounds)
    sys.exit(not all(each.is_same or each.sentence for each in rounds))


def _load(folder: Path, config: EngineConfig) -> Engine:
    engine = Engine.load(folder, config)
    engine.decoder.planner = RandomWidths(splits=True)
    return engine


def _kinds(options: argparse.Namespace) -> list[str]:
    if options.spares:
        killed, silent = _KINDS_WITH_SPARES
        return [killed] * options.kills + [silent] * options.silences
    killed, silent, silent_then_killed = _KINDS
    each = options.silences // 2
    return [killed] * options.kills + [silent] * each + [silent_then_killed] * each


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, nargs="?", default=_DEMO)
    parser.add_argument("--stages", type=lambda text: list(map(int, text.split(","))), default=[2, 3])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--silences", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spares", action="store_true", help="let a spare box go on")
    return parser.parse_args()


def _round(
    engine: Engine,
    stages: ServedStages,
    kind: str,
    num_stages: int,
    expected: Sequence[list[int]],
    rng: np.random.Generator,
    is_together: bool,
) -> LossRound:
    engine.forget()
    victim, moment_s = int(rng.integers(num_stages - 1)), rng.uniform(0.02, 1.0)
    harming = threading.Thread(target=_harm, args=(stages, victim, kind, moment_s))
    harming.start()
    is_same, sentence, wait_s = False, "", 0.0
    try:
        answers = asyncio.run(_answers(engine, is_together))
        is_same, wait_s = [text for text, _ in answers] == expected, max(wait for _, wait in answers)
    except ReaderEdgeError as error:
        sentence = str(error)
    harming.join()
    if kind in _KINDS_WITH_SPARES:
        stages.kill(victim)
    return LossRound(num_stages, kind, is_same, sentence, wait_s)


def _harm(stages: ServedStages, victim: int, kind: str, moment_s: float) -> None:
    time.sleep(moment_s)
    if kind == "kill, spare goes on":
        stages.end(victim)
    elif kind == "kill":
        stages.kill(victim)
    else:
        stages.stop(victim)
    if kind.startswith("silence, then"):
        time.sleep(_SILENT_S)
        (stages.go_on if kind == "silence, then on" else stages.kill)(victim)


async def _answers(engine: Engine, is_together: bool) -> list[tuple[list[int], float]]:
    """Tokens of all answers, and the longest wait in each."""
    async with AsyncEngine(engine) as serving:
        answers = [_answer(serving, prompt, config) for prompt, config in zip(_PROMPTS, _CONFIGS, strict=True)]
        return await asyncio.gather(*answers) if is_together else [await answer for answer in answers]


async def _answer(serving: AsyncEngine, prompt: str, config: GenerationConfig) -> tuple[list[int], float]:
    token_ids, waits, last = list[int](), [0.0], _CLOCK.now_s
    async for chunk in serving.stream(prompt, config):
        token_ids += chunk.token_ids
        waits.append(_CLOCK.now_s - last)
        last = _CLOCK.now_s
    return token_ids, max(waits)


def _report(rounds: Sequence[LossRound]) -> None:
    print(
        "| stages | what happens | rounds | answers the same | error in a sentence | median wait s | longest wait s |"
    )
    print("|---|---|---|---|---|---|---|")
    for num_stages, kind in sorted({(each.num_stages, each.kind) for each in rounds}):
        found = [each for each in rounds if (each.num_stages, each.kind) == (num_stages, kind)]
        waits = [each.wait_s for each in found if each.is_same] or [0.0]
        numbers = len(found), sum(each.is_same for each in found), sum(bool(each.sentence) for each in found)
        print(
            f"| {num_stages} | {kind} | {' | '.join(map(str, numbers))} | {statistics.median(waits):.2f} "
            f"| {max(waits):.2f} |"
        )


if __name__ == "__main__":
    main()
