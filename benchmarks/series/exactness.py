"""Whether drafted paths of a model have the law of undrafted ones, and whether as many drafts count as can.

    python -m benchmarks.series.exactness DATA [--model PACKAGE] [--series air,household] [--paths 20000] [--seed 1]

From the middle of what is held out of a series, so many paths of 32 values are drawn without drafts, a second time
without (the control), by each source of drafts, two patches in every step whether that pays or not, and by the
published rule, which draws again from the model after a rejection. Told are the farthest of 560 means and covariances
in standard errors, and the level of 32 projections (Kolmogorov and Smirnov, after Bonferroni). Of first drafts: how
many counted, and how many more than the overlap of both laws, beside two standard errors. No coupling exceeds that.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.series.drafted import SOURCES
from benchmarks.series.held_out import series_of, windows
from benchmarks.series.overlaps import Watched, watched_paths
from reader_edge.series.bundled import bundled_forecaster
from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.series.forecaster import Forecaster
from reader_edge_runtime.series.outlook import Gaussian
from reader_edge_runtime.series.prompt import Prompt
from tests.runtime.series.laws import moment_gaps, most_errors, projections_level

VALUES = 32


class PublishedRule(Watched):
    """After a rejection it draws from the model again (STRIDE, arXiv 2511.18191)."""

    def replaced(
        self, bound: Gaussian, draft: Gaussian, patches: Float64Array, random: np.random.Generator
    ) -> Float64Array:
        return self.drawn(bound, random)


def acceptance(watched: Watched, random: np.random.Generator) -> str:
    """Cells of a table: the share of first drafts that counted, and how far it is above the overlap."""
    if not watched.counted:
        return "- | -"
    counted, shares = watched.most(random)
    apart = counted - shares[:, 0]
    return f"{watched.firsts.mean():.1%} | {apart.mean():+.1%} ± {2 * apart.std() / len(apart) ** 0.5:.1%}"


class Series:
    """Paths from the middle of what is held out of a series."""

    def __init__(self, package: Path, values: Float64Array, num_paths: int) -> None:
        known = windows(values, VALUES, 3)[1].known
        self._package, self._frame, self._sizes = package, {"series": known}, (VALUES, num_paths)
        self._scaling = Prompt.of(known, Forecaster.load(package, 1).manifest.model, 1).scaling

    def paths(self, drafts: str, coupling: Watched, seed: int) -> Float64Array:
        """(num_paths, VALUES), on the axis on which the model draws."""
        paths = watched_paths(self._package, self._frame, self._sizes, drafts, coupling, seed)
        return self._scaling.scaled(paths[0])


def main() -> None:
    parser = argparse.ArgumentParser(description="Whether drafted paths of a model have the law of undrafted ones.")
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--series", default="air,household")
    parser.add_argument("--paths", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    package, seed = given.model or bundled_forecaster(), given.seed
    sources = SOURCES if Forecaster.load(package, 1).manifest.draft else SOURCES[:-1]
    rules = [*((source, Watched) for source in sources), ("own", PublishedRule)]
    print("| series | drafts | farthest moment | projections | first drafts | above the overlap |")
    print("|---|---|---|---|---|---|")
    bound = 0.0
    for name, values in series_of(given.data, given.series.split(",")).items():
        series = Series(package, values, given.paths)
        plain = series.paths("none", Watched(), seed)
        for source, rule in rules:
            seed, watched = seed + 1, rule()
            paths = series.paths(source, watched, seed)
            gaps = moment_gaps(paths, plain)
            bound = most_errors(len(gaps))
            told = f"{np.abs(gaps).max():.2f} | {projections_level(paths, plain):.2g}"
            label = f"{source}, published rule" if rule is PublishedRule else source
            print(f"| {name} | {label} | {told} | {acceptance(watched, np.random.default_rng(seed))} |", flush=True)
    print(f"\nOne law: moments up to {bound:.2f}, projections from 0.01 on.")


if __name__ == "__main__":
    main()
