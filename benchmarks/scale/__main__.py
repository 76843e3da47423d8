"""What look-ups in a sharded datastore take: warm, from disk, and with only some of the shards asked.

    python -m benchmarks.scale FOLDER [--seconds 10]

FOLDER is what `python -m benchmarks.scale.shards` wrote. Prints the tables of
docs/explanation/measured/scale.md. The files' pages are dropped from memory, those of other programs are not.
"""

import argparse
import itertools
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.peers.tables import machine, table
from benchmarks.scale.lookups import LookUps, Question, Shards, cold, first, questions, timed, warming
from benchmarks.scale.routing import Router, recall

_COLD_ROUNDS = 12
_WARM_QUESTIONS = 2000
_FIRST = 1, 3, 10, 30, 100, 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0, help="for which shards warm up")
    options = parser.parse_args()
    shards = Shards(options.folder)
    if not shards.paths:
        parser.error(f"'{options.folder}' holds no shards: write them with python -m benchmarks.scale.shards")
    num_bytes = sum(path.stat().st_size for path in shards.paths)
    print(f"{len(shards.paths)} shards, {num_bytes / 1e9:.2f} GB; {machine()}\n")
    drawn = questions(options.folder, shards, _WARM_QUESTIONS, seed=0)
    shards.find(0, drawn[0].text)  # compiled code is loaded
    print("\n".join(latencies(options.folder, shards, drawn)), end="\n\n")
    print("\n".join(firsts(options.folder, drawn)), end="\n\n")
    print("\n".join(warming_up(shards, drawn, options.seconds)), end="\n\n")
    print("\n".join(recalls(options.folder, shards, drawn)))


def latencies(folder: Path, shards: Shards, drawn: Sequence[Question]) -> list[str]:
    """A row a state of memory."""
    rows = [_row("from disk", cold(shards, drawn[:_COLD_ROUNDS]))]
    rows.append(_row("from disk, nothing read ahead", cold(Shards(folder, is_random=True), drawn[:_COLD_ROUNDS])))
    everywhere = list(itertools.product(range(len(shards.paths)), (question.text for question in drawn)))
    shards.open()
    timed(shards, iter(everywhere))
    rows.append(_row("in memory", timed(shards, iter(everywhere))))
    return table(["a look-up in one shard", "median", "p95", "p99", "a second", "page reads, mean"], rows)


def firsts(folder: Path, drawn: Sequence[Question]) -> list[str]:
    """A row a way of reading: what the first look-ups in a shard take together."""
    rows = []
    for name, is_random in (("read ahead", False), ("single pages", True)):
        seconds = first(Shards(folder, is_random), drawn, _FIRST)
        rows.append([name, *(f"{1e3 * each:.0f} ms" for each in seconds)])
    return table(["the first so many look-ups in one shard", *map(str, _FIRST)], rows)


def warming_up(shards: Shards, drawn: Sequence[Question], seconds: float) -> list[str]:
    """Look-ups a second in all shards, tenth by tenth of the time."""
    marks = [(0.0, 0), *warming(shards, list(drawn) * 1000, seconds)]
    rows = [
        [f"{after[0]:.1f}", f"{(after[1] - before[1]) / max(1e-9, after[0] - before[0]):.0f}"]
        for before, after in itertools.pairwise(marks)
        if after[1] > before[1]
    ]
    return table(["seconds since pages were dropped", "look-ups a second meanwhile"], rows)


def recalls(folder: Path, shards: Shards, drawn: Sequence[Question]) -> list[str]:
    """A row for each number of shards asked."""
    router = Router.read(folder, shards)
    begun = time.perf_counter()
    for question in drawn:
        router.ranked(question.text)
    routed_us = 1e6 * (time.perf_counter() - begun) / len(drawn)
    found = recall(shards, router, drawn)
    by_chance = recall(shards, _Chance(len(shards.paths)), drawn)
    counts = [k for k in (1, 2, 3, 4, 6, 8, 12, 16) if k <= len(shards.paths)]
    rows = [
        [str(k), *(f"{100 * each[k - 1]:.1f}" for each in (found.longest, found.right, by_chance.longest))]
        for k in counts
    ]
    own = np.mean([router.ranked(question.text)[0] == question.shard for question in drawn])
    head = ["shards asked", "longest match among them, %", "next token right, %", "longest match, asked by chance, %"]
    return [
        *table(head, rows),
        "",
        f"The router takes {routed_us:.0f} µs and {router.num_bytes / 1e6:.1f} MB; its first is the text's own shard "
        f"in {100 * own:.1f} % of {len(drawn)} questions.",
    ]


class _Chance(Router):
    """Asks shards in an order by chance, another for every text."""

    def __init__(self, num_shards: int) -> None:
        self._num_shards = num_shards

    def ranked(self, text: Sequence[int]) -> list[int]:
        order: list[int] = np.random.default_rng(list(text)).permutation(self._num_shards).tolist()
        return order


def _row(name: str, found: LookUps) -> list[str]:
    times = [f"{1e6 * found.percentile_s(share):.0f} µs" for share in (50, 95, 99)]
    rate = len(found.seconds) / sum(found.seconds)
    return [name, *times, f"{rate:.0f}", f"{np.mean(found.faults):.1f}"]


if __name__ == "__main__":
    main()
