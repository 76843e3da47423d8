"""Whether drafted patches leave forecasts as good as they were: scores and squared errors with and without drafts.

    python -m benchmarks.series.drafted DATA [--model PACKAGE] [--horizon 96] [--windows 40] [--paths 64] [--seed 1]
        [--drafted 2]

Every window of every series is forecast by each source of drafts, as many patches in every step whether that pays or
not, and twice without drafts: the second time is the control. Errors are given as their share of those without drafts,
beside two standard errors of that over the windows. The threshold for all of them together is Bonferroni's.
"""

import argparse
from pathlib import Path
from statistics import NormalDist
from unittest.mock import patch

import numpy as np

from benchmarks.series.held_out import Window, ranked_score, series_of, windows
from reader_edge_runtime.arrays import Float64Array
from reader_edge_series import path_sampler
from reader_edge_series.draft_length import DraftLength
from reader_edge_series.forecaster import Forecaster
from reader_edge_series.tables.bundled import bundled_forecaster

SOURCES = ("none", "own", "analogs", "model")
_LEVEL = 0.05  # at which any of the differences would be beyond chance


class AlwaysDrafted(DraftLength):
    """Drafts so many patches in every step that leaves them to draft."""

    number = 2

    def choose(self, num_left: int, is_begun: bool = True) -> int:
        return min(self.number, self.most, num_left - 1)


def figures(paths: Float64Array, parts: list[Window]) -> Float64Array:
    """Score and squared error of the mean of each window's paths (W, K, n): (W, 2)."""
    pairs = zip(paths, parts, strict=True)
    return np.array(
        [(ranked_score(each, part.coming).mean(), ((each.mean(0) - part.coming) ** 2).mean()) for each, part in pairs]
    )


def compared(plain: Float64Array, other: Float64Array) -> tuple[Float64Array, Float64Array]:
    """How much larger figures (W, 2) are, a share of the plain ones' mean, and two standard errors of it."""
    apart = (other - plain) / plain.mean(0)
    return apart.mean(0), 2 * apart.std(0, ddof=1) / len(apart) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description="Whether drafts leave forecasts as good as they were.")
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--horizon", type=int, default=96)
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--paths", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drafted", type=int, default=AlwaysDrafted.number)
    given = parser.parse_args()
    AlwaysDrafted.number = given.drafted
    forecaster = Forecaster.load(given.model or bundled_forecaster())
    sources = SOURCES if forecaster.manifest.draft else SOURCES[:-1]
    print("| series | drafts | accepted | score | squared error |\n|---|---|---|---|---|")
    errors: list[float] = []
    for name, values in series_of(given.data).items():
        parts = windows(values, given.horizon, given.windows)
        frame = {str(number): part.known for number, part in enumerate(parts)}
        plain: Float64Array | None = None
        for number, source in enumerate(("none", *sources)):
            seed = given.seed + number
            with patch.object(path_sampler, "DraftLength", AlwaysDrafted):
                found = forecaster.forecast(frame, given.horizon, given.paths, drafts=source, seed=seed)
            own = figures(found.paths, parts)
            if plain is None:
                plain = own
                continue
            more, spread = compared(plain, own)
            cells = [f"{100 * each:+.1f} ± {100 * most:.1f} %" for each, most in zip(more, spread, strict=True)]
            share = f"{found.stats.acceptance_rate:.0%}" if found.stats.num_drafted else "-"
            print(f"| {name} | {source} | {share} | {' | '.join(cells)} |", flush=True)
            if source != "none":
                errors += (2 * np.abs(more) / spread).tolist()
    num_within, bound = sum(each <= 2 for each in errors), NormalDist().inv_cdf(1 - _LEVEL / 2 / len(errors))
    print(f"\nWithin two standard errors: {num_within} of {len(errors)} (by chance alone, 19 of 20)")
    print(f"The farthest: {max(errors):.1f} standard errors, where {bound:.1f} are beyond chance for so many")


if __name__ == "__main__":
    main()
