"""What drafted patches gain by the clock, by where drafts come from; and what a pass over several patches takes.

    python -m benchmarks.series.speed DATA [--model PACKAGE] [--horizons 96,336,720] [--paths 1,8,64] [--rounds 9]
        [--series air,household] [--drafted 2] [--seeded]

Each round has every source in turn, in changing order, on a series of its own; times are those of whole forecasts,
medians over the rounds. The first three rounds are left out: there the numbers of drafts are learned. A cell is how
much faster than undrafted; how many times fewer passes; how long a pass and all around it took, in undrafted ones; and
the share of drafts that were accepted. --drafted: so many patches in every step, whether that pays or not. --seeded:
each round has a seed, and a rule says how many.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np

from benchmarks.series.drafted import AlwaysDrafted
from benchmarks.series.held_out import SERIES, Window, series_of, windows
from reader_edge.series.bundled import bundled_forecaster
from reader_edge_runtime.arrays import Float32Array, Float64Array
from reader_edge_runtime.package.package_files import PackageFiles
from reader_edge_runtime.series import path_sampler
from reader_edge_runtime.series.forecaster import Forecaster
from reader_edge_runtime.series.host_patches import HostPatches
from reader_edge_runtime.series.series_manifest import MODEL_NAME, read_series_manifest

LEARNING_ROUNDS = 3
PROMPT = 72  # patches behind which passes are timed
WIDTHS = (1, 2, 3, 4, 7)


@dataclass
class Timed:
    """Of one source: seconds of forecasts, and what was drafted, passed and accepted in them."""

    seconds: list[float] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    passes: int = 0

    @property
    def share(self) -> float:
        """Of drafts that were accepted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def pass_s(self) -> float:
        """Of a pass and all around it."""
        return sum(self.seconds) / max(self.passes, 1)

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))


def interleaved(
    forecast: Callable[[str, int], tuple[float, int, int, int]], sources: Sequence[str], num_rounds: int
) -> dict[str, Timed]:
    """Every source in each round, each time another first. forecast: of a source and round, what `Timed` adds up."""
    found = {source: Timed() for source in sources}
    for number in range(LEARNING_ROUNDS + num_rounds):
        shift = number % len(sources)
        for source in (*sources[shift:], *sources[:shift]):
            seconds, drafted, accepted, passes = forecast(source, number)
            if number >= LEARNING_ROUNDS:
                timed = found[source]
                timed.seconds.append(seconds)
                timed.drafted, timed.accepted = timed.drafted + drafted, timed.accepted + accepted
                timed.passes += passes
    return found


def pass_times(target: HostPatches, num_paths: int, num_rounds: int = 41) -> dict[int, float]:
    """Milliseconds of a pass over so many patches of each path, medians, interleaved."""
    random = np.random.default_rng(0)
    cache = target.new_cache(num_paths, PROMPT + max(WIDTHS))
    size = target.sizes.patch_size
    target.forward(cache, 0, _patches(random, num_paths, PROMPT, size), [[PROMPT - 1]] * num_paths)
    for slot in range(num_paths):
        cache.commit(slot, range(PROMPT))
    seconds: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for _ in range(num_rounds):
        for width in WIDTHS:
            patches, rows = _patches(random, num_paths, width, size), [list(range(width))] * num_paths
            start = time.perf_counter()
            target.forward(cache, 0, patches, rows)
            seconds[width].append(time.perf_counter() - start)
    return {width: 1e3 * float(np.median(each)) for width, each in seconds.items()}


def _patches(random: np.random.Generator, num_paths: int, width: int, size: int) -> Float32Array:
    return random.standard_normal((num_paths, width, size)).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description="What drafted patches gain by the clock.")
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--horizons", type=_numbers, default=(96, 336, 720))
    parser.add_argument("--paths", type=_numbers, default=(1, 8, 64))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--series", type=lambda text: text.split(","), default=SERIES)
    parser.add_argument("--drafted", type=int, default=0)
    parser.add_argument("--seeded", action="store_true")
    given = parser.parse_args()
    if given.drafted:
        AlwaysDrafted.number = given.drafted
        patch.object(path_sampler, "DraftLength", AlwaysDrafted).start()
    folder = given.model or bundled_forecaster()
    manifest = read_series_manifest(folder)
    files = PackageFiles(folder, manifest.files)
    target = HostPatches.open(files, MODEL_NAME, manifest.model, given.threads)
    sources = ["none", "own", "analogs", *(["model"] if manifest.draft else [])]
    known = [each.known for each in _parts(given.data, given.series, LEARNING_ROUNDS + given.rounds)]
    print(f"| paths | pass of {', '.join(map(str, WIDTHS))} patches, ms | T(4)/T(1) |\n|---|---|---|")
    for num_paths in given.paths:
        times = pass_times(target, num_paths)
        told = " ".join(f"{each:.2f}" for each in times.values())
        print(f"| {num_paths} | {told} | {times[4] / times[1]:.2f} |", flush=True)
    print(f"\n| paths | horizon | plain, ms | {' | '.join(sources[1:])} |\n|---|---|---|{'---|' * len(sources[1:])}")
    for num_paths in given.paths:
        for horizon in given.horizons:
            forecaster = Forecaster.load(folder, given.threads)
            forecast = partial(timed, forecaster, known, horizon, num_paths, given.seeded)
            found = interleaved(forecast, sources, given.rounds)
            plain = found["none"]
            cells = [
                f"{plain.median / each.median:.2f} ({plain.passes / max(each.passes, 1):.2f}, step "
                f"{each.pass_s / plain.pass_s:.2f}, {each.share:.0%} of {each.drafted})"
                for each in (found[source] for source in sources[1:])
            ]
            print(f"| {num_paths} | {horizon} | {1e3 * plain.median:.1f} | {' | '.join(cells)} |", flush=True)


def timed(
    forecaster: Forecaster,
    known: Sequence[Float64Array],
    horizon: int,
    num_paths: int,
    is_seeded: bool,
    source: str,
    number: int,
) -> tuple[float, int, int, int]:
    """Seconds of a forecast of series `number`, and what was drafted, accepted and passed in it."""
    start, seed = time.perf_counter(), number if is_seeded else None
    stats = forecaster.forecast({"series": known[number]}, horizon, num_paths, drafts=source, seed=seed).stats
    return time.perf_counter() - start, stats.num_drafted, stats.num_accepted, stats.num_passes


def _parts(data: Path, names: Sequence[str], number: int) -> list[Window]:
    """Windows of the series in turn."""
    parts = [windows(values, 1, number) for values in series_of(data, names).values()]
    return [parts[each % len(parts)][each] for each in range(number)]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


if __name__ == "__main__":
    main()
