"""One device and one server, measured and simulated: is a simulated second a second?

    python -m benchmarks.device PACKAGE --out FILE.json
    python -m benchmarks.fleet.validate FILE.json [--within 0.15]

What a step takes without a link, of each way and prompt, is taken from the answers at the shortest round trip, their
prompts included; with it, and with as many steps as were measured, the other round trips are simulated. Devices in
lock-step send wider trees the longer their way is: fewer steps compute as much, so their time without a link is
divided by the steps of the longer trip. Exits with 1 where the median of a way's answers at a round trip is further
off. Trees that are sent before the answer to the last one ("optimistic") are not simulated.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.fleet.answers import Answer
from benchmarks.fleet.costs import Plan
from benchmarks.fleet.pass_times import PassTimes
from benchmarks.fleet.scenario import Scenario, draw_fleet
from benchmarks.fleet.simulation import Asked, Simulation
from benchmarks.fleet.ways import WAYS, Way
from benchmarks.peers.tables import table
from reader_edge_runtime.measuring.pass_cost import PassCost

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
        if not 1 <= run.num_steps <= run.num_tokens or not run.seconds > 0:
            raise ValueError(f"no answer takes so many steps or seconds: {fields}")
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


def compared(runs: Sequence[Run]) -> list[tuple[Run, float]]:
    """Answers at longer round trips, and what they take in simulated time."""
    found = []
    for run in runs:
        same = [each for each in runs if (each.way, each.kind, each.prompt) == (run.way, run.kind, run.prompt)]
        shortest = min(same, key=lambda each: each.round_trip_ms)
        if shortest is not run:
            num_steps = shortest.num_steps if WAYS[run.way].is_streamed else run.num_steps
            step_s = shortest.seconds / num_steps
            found.append((run, simulated_s(run, step_s)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--within", type=float, default=0.15, help="how far off the median of a cell may be")
    options = parser.parse_args()
    try:
        found = compared(read_runs(options.file))
    except (OSError, ValueError, TypeError, KeyError) as error:
        parser.error(f"'{options.file}' holds no measured answers: {error}")
    if not found:
        parser.error(f"'{options.file}' has one round trip: measure without a link and with others.")
    cells: dict[tuple[str, str, float], list[tuple[Run, float]]] = {}
    for run, seconds in found:
        cells.setdefault((run.way, run.kind, run.round_trip_ms), []).append((run, seconds))
    rows, worst = [], 0.0
    for (way, kind, round_trip_ms), of_cell in sorted(cells.items()):
        off = median(seconds / run.seconds - 1 for run, seconds in of_cell)
        worst = max(worst, abs(off))
        measured, simulated = median(run.seconds for run, _ in of_cell), median(seconds for _, seconds in of_cell)
        rows.append([way, kind, f"{round_trip_ms:g}", f"{measured:.3f}", f"{simulated:.3f}", f"{off:+.1%}"])
    print("\n".join(table(["way", "set", "round trip, ms", "measured, s", "simulated, s", "off by"], rows)))
    if worst > options.within:
        sys.exit(1)


if __name__ == "__main__":
    main()
