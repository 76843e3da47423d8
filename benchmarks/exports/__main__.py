"""Run a command and report its wall time and the peak memory of all its processes, in all and by its lines of output.

    python -m benchmarks.exports [--json FILE] -- reader-edge export models/demo/checkpoint /tmp/demo --force

Memory is sampled every 50 ms (--interval-s), shared pages counted once. "Anonymous" is what only memory holds; "with
mapped files" adds pages of files that are mapped, which the system takes back when it needs the room. Exits as the
command does. Linux alone.
"""

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path

from benchmarks.exports.process_tree import Cost, Peaks, run_and_measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--interval-s", type=float, default=0.05)
    parser.add_argument("command", nargs="+", help="after --")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    cost = run_and_measure(options.command, options.interval_s)
    print(f"\n{' '.join(options.command)}\n{os.cpu_count()} cores, load before {load:.1f}", file=sys.stderr)
    print_cost(cost)
    if options.json is not None:
        figures = dataclasses.asdict(cost) | {"peaks": dataclasses.asdict(cost.peaks), "load_before": load}
        options.json.write_text(json.dumps({"command": options.command, **figures}, indent=1) + "\n")
    sys.exit(cost.exit_code if cost.exit_code >= 0 else 128 - cost.exit_code)


def print_cost(cost: Cost) -> None:
    """A line for each stage that took its time, and one for all."""
    row = "{:>9} {:>11} {:>18}  {}"
    print(row.format("seconds", "anonymous", "with mapped files", "after the line"), file=sys.stderr)
    for stage in (stage for stage in cost.stages if stage.seconds >= 0.01 * cost.seconds):
        print(row.format(f"{stage.seconds:.1f}", *sizes(stage.peaks), stage.line[:80]), file=sys.stderr)
    summary = f"in all: exit code {cost.exit_code}, {cost.cpu_s:.1f} s of processor time, {cost.num_samples} samples"
    print(row.format(f"{cost.seconds:.1f}", *sizes(cost.peaks), summary), file=sys.stderr)


def sizes(peaks: Peaks) -> tuple[str, str]:
    return f"{peaks.anonymous / 1e6:.0f} MB", f"{peaks.total / 1e6:.0f} MB"


if __name__ == "__main__":
    main()
