"""One device and one server, measured and simulated: is a simulated second a second?

    python -m benchmarks.fleet.validate FILE [--cost COST.json] [--within 0.15]

FILE: JSON, `{"runs": [{"way": "lock-step", "round_trip_s": 0.04, "past": 300, "num_tokens": 128, "num_passes": 60,
"num_nodes": 480, "seconds": 3.1}]}`: answers of a way (`server alone`, `hints`, `lock-step`) together, decoding alone,
without their prompts. num_nodes: of all passes, pending tokens included. COST: passes of that server, as
`reader-edge bench cost --json` prints them. Exits with 1 where a simulated time is further off.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fleet.answers import Answer
from benchmarks.fleet.costs import Plan
from benchmarks.fleet.pass_times import FILE, PassTimes
from benchmarks.fleet.scenario import Scenario, draw_fleet
from benchmarks.fleet.simulation import Asked, Simulation
from benchmarks.fleet.ways import WAYS, Way
from benchmarks.peers.tables import table

_FAST_BIT_S = np.full((1, 1), 1e9)  # a measured link has its delay alone


@dataclass(frozen=True, slots=True)
class Run:
    """A measured run, or several together: see this module's head."""

    way: str
    round_trip_s: float
    past: float
    num_tokens: int
    num_passes: int
    num_nodes: int
    seconds: float

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Run":
        """Raises ValueError for what cannot have been measured."""
        numbers = {name: float(fields[name]) for name in cls.__dataclass_fields__ if name != "way"}
        counts = {name: int(numbers[name]) for name in ("num_tokens", "num_passes", "num_nodes")}
        run = cls(str(fields["way"]), numbers["round_trip_s"], numbers["past"], **counts, seconds=numbers["seconds"])
        if run.way not in WAYS or not 1 <= run.num_passes <= min(run.num_tokens, run.num_nodes):
            raise ValueError(f"no measured run: {dict(fields)}")
        return run


class _Fixed(Way):
    """A way whose trees all have one width."""

    def widths(self) -> list[int]:
        return [self.width]


def simulated_s(run: Run, times: PassTimes) -> float:
    """Seconds of a measured run's passes, with its link, as the fleet's simulation has them.

    Hints are in the measured number of passes; what remains of them is the way of the answer.
    """
    width = max(1, round(run.num_nodes / run.num_passes))
    ends = [run.num_tokens * number // run.num_passes for number in range(run.num_passes + 1)]
    left = [end - token for begin, end in pairwise(ends) for token in range(begin, end)]
    steps = {width: left}  # a step from any token goes to the end of the measured one's even share
    answer = Answer(run.way, {1: left, **steps}, {1: left, **steps})
    known = WAYS["lock-step" if run.way == "lock-step" else "server alone"]
    way = _Fixed(known.name, width, is_streamed=known.is_streamed, is_drafted=known.is_drafted)
    scenario = Scenario(1, 1, server_speeds=(1.0, 1.0), delay_s=run.round_trip_s / 2)
    fleet = replace(draw_fleet(scenario, 0), up_bit_s=_FAST_BIT_S, down_bit_s=_FAST_BIT_S, pasts=np.array([run.past]))
    plan = Plan(np.array([0]), np.ones(1), np.ones(1))
    emitted = {is_device: {width: run.num_tokens / run.num_passes} for is_device in (True, False)}
    (answered,) = Simulation(fleet, plan, way, times, emitted).run(Asked([[answer]], [[0.0]]))
    return answered.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--cost", type=Path, default=FILE, help="the server's passes")
    parser.add_argument("--within", type=float, default=0.15, help="how far off a simulated time may be")
    options = parser.parse_args()
    times = PassTimes.read(path=options.cost)
    try:
        runs = [Run.of(fields) for fields in json.loads(options.file.read_text())["runs"]]
    except (ValueError, TypeError, KeyError) as error:
        parser.error(f"'{options.file}' holds no measured runs: {error}")
    rows, errors = [], []
    for run in runs:
        seconds = simulated_s(run, times)
        errors.append(seconds / run.seconds - 1)
        cells = (f"{run.seconds:.3f}", f"{seconds:.3f}", f"{errors[-1]:+.1%}")
        rows.append([run.way, f"{1e3 * run.round_trip_s:.0f}", *cells])
    print("\n".join(table(["way", "round trip, ms", "measured, s", "simulated, s", "off by"], rows)))
    if max(map(abs, errors), default=0.0) > options.within:
        sys.exit(1)


if __name__ == "__main__":
    main()
