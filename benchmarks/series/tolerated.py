"""What a tolerance of means saves and costs: passes, and the squared and absolute error of the path of means.

    python -m benchmarks.series.tolerated DATA [--model PACKAGE] [--horizon 720] [--windows 12]

Every window of every series is rolled out with each tolerance; 0 is the model's own means. No figure is a time, and
none varies from run to run.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.series.held_out import series_of, windows
from reader_edge.series.bundled import bundled_forecaster
from reader_edge_runtime.lossy.mean_forecaster import MeanForecaster

TOLERANCES = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a tolerance of means saves and costs.")
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--horizon", type=int, default=720)
    parser.add_argument("--windows", type=int, default=12)
    given = parser.parse_args()
    print(f"| series | {' | '.join(f'{each:g}' for each in TOLERANCES)} |\n|---|{'---|' * len(TOLERANCES)}")
    forecasters = [MeanForecaster.load(given.model or bundled_forecaster(), 0, each) for each in TOLERANCES]
    for name, values in series_of(given.data).items():
        parts = windows(values, given.horizon, given.windows)
        frame = {str(number): part.known for number, part in enumerate(parts)}
        coming, cells, own = np.stack([part.coming for part in parts]), [], (0.0, 0.0, 0)
        for forecaster in forecasters:
            found = forecaster.rolled_out(frame, given.horizon)
            off = found.forecast.paths[:, 0] - coming
            figures = float((off**2).mean()), float(np.abs(off).mean()), found.forecast.stats.num_passes
            own = own if any(own) else figures
            more = [100 * (figure / plain - 1) for figure, plain in zip(figures[:2], own[:2], strict=True)]
            cells.append(f"{own[2] / figures[2]:.2f} {more[0]:+.1f}% {more[1]:+.1f}%")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
