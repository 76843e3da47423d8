"""How many passes drafts save on one path, whatever steps take: no figure is a time, and none varies from run to run.

    python -m benchmarks.series.saved DATA [--model PACKAGE] [--horizon 720] [--windows 12] [--drafted 1,2,3]

A path of each window is drawn with so many patches drafted in every step. A cell is how many times fewer passes it
took, and the share of drafts that were accepted.
"""

import argparse
from pathlib import Path
from unittest.mock import patch

from benchmarks.series.drafted import SOURCES, AlwaysDrafted
from benchmarks.series.held_out import series_of, windows
from reader_edge.series.bundled import bundled_forecaster
from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.series import path_sampler
from reader_edge_runtime.series.forecaster import Forecaster
from reader_edge_runtime.series.path_sampler import ForecastStats


def drawn(forecaster: Forecaster, pasts: list[Float64Array], horizon: int, source: str) -> ForecastStats:
    """Of one path behind each past, all together."""
    total = ForecastStats()
    with patch.object(path_sampler, "DraftLength", AlwaysDrafted):
        for seed, past in enumerate(pasts):
            stats = forecaster.forecast({"series": past}, horizon, 1, drafts=source, seed=seed).stats
            total.num_passes += stats.num_passes
            total.num_drafted += stats.num_drafted
            total.num_accepted += stats.num_accepted
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description="How many passes drafts save on one path.")
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--horizon", type=int, default=720)
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--drafted", type=lambda text: [int(each) for each in text.split(",")], default=[1, 2, 3])
    given = parser.parse_args()
    forecaster = Forecaster.load(given.model or bundled_forecaster())
    sources = SOURCES[1:] if forecaster.manifest.draft else SOURCES[1:-1]
    print(f"| series | drafts | {' | '.join(map(str, given.drafted))} |\n|---|---|{'---|' * len(given.drafted)}")
    for name, values in series_of(given.data).items():
        pasts = [part.known for part in windows(values, 1, given.windows)]
        plain = drawn(forecaster, pasts, given.horizon, "none")
        for source in sources:
            cells = []
            for AlwaysDrafted.number in given.drafted:
                found = drawn(forecaster, pasts, given.horizon, source)
                cells.append(f"{plain.num_passes / found.num_passes:.2f} ({found.acceptance_rate:.0%})")
            print(f"| {name} | {source} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
