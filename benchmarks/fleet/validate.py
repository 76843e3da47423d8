"""One device and one server, measured and simulated: is a simulated second a second?

    python -m benchmarks.device PACKAGE --out FILE.json
    python -m benchmarks.fleet.validate FILE.json [--within 0.15]

What an answer computes is taken from the answers at the shortest round trip, their prompts included; with it, and with
as many steps as were measured, the other round trips are simulated. The server alone takes as long a step at any round
trip. Hints come later the longer their way is: the tokens that were the device's take what such tokens took, all others
what the server alone takes. Devices in lock-step send wider trees the longer their way is, so that fewer steps compute
as much. Exits with 1 where the median of a way's answers at a round trip is further off. Trees that are sent before the
answer to the last one ("optimistic") are not simulated.

A second table takes nothing of an answer but its length: trees are as wide as pays, steps bring what they brought in
recorded answers (`answers.json`), passes take what they took alone (`cost.json`). Answers that the device knows are not
in it, as no recorded one was known whole. How far it is off changes no exit.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.fleet.answers import Answer, Emitted, emitted_table, read_answers
from benchmarks.fleet.costs import Plan
from benchmarks.fleet.pass_times import PassTimes
from benchmarks.fleet.scenario import Scenario, draw_fleet
from benchmarks.fleet.simulation import Asked, Simulation
from benchmarks.fleet.tree_widths import TreeWidths
from benchmarks.fleet.ways import WAYS, Way
from benchmarks.peers.tables import table
from reader_edge_runtime.measuring.pass_cost import PassCost

_PAST = 128  # tokens behind which a predicted pass stands; over a few hundred it hardly changes
_FAST_BIT_S = np.full((1, 1), 1e9)  # a relayed link has its delay alone


@dataclass(frozen=True, slots=True)
class Run:
    """A measured answer, as `benchmarks.device` writes it: what device and server knew is its kind."""

    way: str
    kind: str
    prompt: int
    round_trip_ms: float
    num_tokens: int
    num_steps: int
    num_from_device: int
    seconds: float


class _Single(Way):
    """A way whose steps have one node, as a step takes what it took."""

    def widths(self) -> list[int]:
        return [1]


def read_runs(path: Path) -> list[Run]:
    """The fastest answer of each prompt, kind, way and round trip: neighbours only add time. Raises ValueError."""
    fastest: dict[tuple[Any, ...], Run] = {}
    for fields in json.loads(path.read_text()):
        run = Run(**{name: fields[name] for name in Run.__dataclass_fields__})
        is_possible = 1 <= run.num_steps <= run.num_tokens and 0 <= run.num_from_device <= run.num_tokens
        if not is_possible or not run.seconds > 0:
            raise ValueError(f"no answer takes so many steps, tokens of a device or seconds: {fields}")
        key = run.way, run.kind, run.prompt, run.round_trip_ms
        if run.way in WAYS and (key not in fastest or run.seconds < fastest[key].seconds):
            fastest[key] = run
    return list(fastest.values())


def simulated_s(run: Run, step_s: float) -> float:
    """Seconds of an answer's steps, each of which takes so long, with its link, as the fleet's simulation has them.

    Hints are in the measured number of steps; what remains of them is the way of the answer.
    """
    is_streamed = WAYS[run.way].is_streamed
    first = 0 if is_streamed else 1  # in lock-step the first token takes a trip, and no step
    ends = [first + (run.num_tokens - first) * number // run.num_steps for number in range(run.num_steps + 1)]
    ends = [0] * first + ends
    left = {1: [end - token for begin, end in pairwise(ends) for token in range(begin, end)]}  # to a step's end
    way = _Single(run.way, 1, is_streamed=is_streamed, is_drafted=not is_streamed)
    scenario = Scenario(1, 1, server_speeds=(1.0, 1.0), delay_s=run.round_trip_ms / 2000)
    fleet = replace(draw_fleet(scenario, 0), up_bit_s=_FAST_BIT_S, down_bit_s=_FAST_BIT_S)
    times = PassTimes(PassCost(1, (1,), (1, 2), np.full((1, 2), step_s)))
    emitted = {is_device: {1: run.num_tokens / run.num_steps} for is_device in (True, False)}
    plan = Plan(np.array([0]), np.ones(1), np.ones(1))
    asked = Asked([[Answer(run.kind, left, left)]], [[0.0]])
    (answered,) = Simulation(fleet, plan, way, times, emitted).run(asked)
    return answered.seconds


def computed_s(run: Run, runs: Sequence[Run]) -> float:
    """Seconds that an answer takes beside its trips, by answers to the same prompt at the shortest round trip."""
    near = _shortest(run.way, run, runs)
    if run.way == "server alone":
        return near.seconds * run.num_steps / near.num_steps
    if run.way != "hints":
        return near.seconds
    alone = _shortest("server alone", run, runs)
    other_s = alone.seconds / alone.num_tokens
    device_s = near.seconds - (near.num_tokens - near.num_from_device) * other_s  # of all the device's tokens
    device_s = min(max(device_s / max(1, near.num_from_device), 0.0), other_s)
    return run.num_from_device * device_s + (run.num_tokens - run.num_from_device) * other_s


def _shortest(way: str, run: Run, runs: Sequence[Run]) -> Run:
    same = [each for each in runs if (each.way, each.kind, each.prompt) == (way, run.kind, run.prompt)]
    if not same:
        raise ValueError(f"no answer of '{way}' to this prompt: {run}")
    return min(same, key=lambda each: each.round_trip_ms)


def compared(runs: Sequence[Run]) -> list[tuple[Run, float]]:
    """Answers at longer round trips, and what they take in simulated time. Raises ValueError where some are missing."""
    longer = [run for run in runs if run is not _shortest(run.way, run, runs)]
    return [(run, simulated_s(run, computed_s(run, runs) / run.num_steps)) for run in longer]


def predicted(runs: Sequence[Run], times: PassTimes, emitted: Emitted) -> list[tuple[Run, float]]:
    """Answers that no device knew, at every round trip, and what they take with what was recorded of others.

    times: of the target's passes. Prompts take nothing.
    """
    found = []
    for run in runs:
        is_device = not WAYS[run.way].is_streamed  # by whom, or by what knowledge, each step is drafted
        if run.kind == "unknown":
            trip_s = run.round_trip_ms / 1000 if is_device else 0.0
            width = TreeWidths(WAYS[run.way].widths(), times, _PAST, emitted, trip_s).best(1, is_device)
            num_steps = max(1, round(run.num_tokens / emitted[is_device][width]))
            found.append((run, simulated_s(replace(run, num_steps=num_steps), times.seconds(width, _PAST))))
    return found


Average = Callable[[Sequence[float]], float]
Cells = dict[tuple[str, str, float], list[tuple[Run, float]]]


def _cells(found: Sequence[tuple[Run, float]]) -> Cells:
    """Answers by way, kind and round trip."""
    cells: Cells = {}
    for run, seconds in found:
        cells.setdefault((run.way, run.kind, run.round_trip_ms), []).append((run, seconds))
    return cells


def _table(cells: Cells, offs: Mapping[tuple[str, str, float], float], average: Average, word: str) -> list[str]:
    rows = []
    for (way, kind, round_trip_ms), of_cell in sorted(cells.items()):
        times = average([run.seconds for run, _ in of_cell]), average([seconds for _, seconds in of_cell])
        off = offs[way, kind, round_trip_ms]
        rows.append([way, kind, f"{round_trip_ms:g}", *(f"{each:.3f}" for each in times), f"{off:+.1%}"])
    return table(["way", "set", "round trip, ms", "measured, s", f"{word}, s", "off by"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--within", type=float, default=0.15, help="how far off the median of a cell may be")
    options = parser.parse_args()
    try:
        runs = read_runs(options.file)
        found = compared(runs)
    except (OSError, ValueError, TypeError, KeyError) as error:
        parser.error(f"'{options.file}' holds no measured answers: {error}")
    if not found:
        parser.error(f"'{options.file}' has one round trip: measure without a link and with others.")
    cells = _cells(found)
    offs = {key: median(seconds / run.seconds - 1 for run, seconds in of_cell) for key, of_cell in cells.items()}
    lines = _table(cells, offs, median, "simulated")
    # What steps bring in the mean says nothing of a single answer: means are compared.
    others = _cells(predicted(runs, PassTimes.read(), emitted_table(read_answers())))
    if others:
        means = {key: fmean(s for _, s in of) / fmean(run.seconds for run, _ in of) - 1 for key, of in others.items()}
        lines += ["", *_table(others, means, fmean, "predicted")]
    print("\n".join(lines))
    worst = max(map(abs, offs.values()))
    if worst > options.within:
        sys.exit(1)


if __name__ == "__main__":
    main()
