"""How many drafts count, how many can at most, and what two candidates for a patch would add to that.

    python -m benchmarks.series.overlaps DATA [--model PACKAGE] [--horizon 96] [--windows 24] [--paths 16] [--seed 1]

Paths of every window are drawn with two patches of each source drafted in every step. Told are patches that a step
gains: by its first draft, by the chain of both, and by two candidates for its first patch instead, drawn independently
and coupled as well as two can be. The last is a bound, integrated for a part of the steps.
"""

import argparse
from pathlib import Path
from unittest.mock import patch

import numpy as np

from benchmarks.series.drafted import SOURCES, AlwaysDrafted
from benchmarks.series.held_out import series_of, windows
from reader_edge.series.bundled import bundled_forecaster
from reader_edge_runtime.arrays import BoolArray, Float64Array
from reader_edge_runtime.series import path_sampler
from reader_edge_runtime.series.coupling import ExactCoupling, log_ratio
from reader_edge_runtime.series.forecaster import Forecaster
from reader_edge_runtime.series.outlook import Gaussian

_DRAWS = 1024  # of each of two laws
_LOOKED_AT = 5000  # steps of a path whose bounds are integrated, evenly from all


class Watched(ExactCoupling):
    """Keeps which drafts counted, and the laws of the first of each step."""

    def __init__(self) -> None:
        self.counted: list[BoolArray] = []  # of steps with drafts, (B, drafts)
        self.laws: list[Float64Array] = []  # beside them: mean and scale of model and draft, (B, 4, P)

    def accepted(
        self, bound: Gaussian, draft: Gaussian, patches: Float64Array, random: np.random.Generator
    ) -> BoolArray:
        counted = super().accepted(bound, draft, patches, random)
        if counted.shape[1]:
            self.counted.append(counted)
            self.laws.append(np.stack([*bound.where(np.s_[:, 0]), *draft.where(np.s_[:, 0])], axis=1))
        return counted

    @property
    def firsts(self) -> BoolArray:
        """Which first drafts counted, (n,)."""
        return np.concatenate([each[:, 0] for each in self.counted])

    def most(self, random: np.random.Generator) -> tuple[BoolArray, Float64Array]:
        """Some first drafts: which counted, (n,), and how often one and one of two can count, (n, 2)."""
        every = max(1, len(self.firsts) // _LOOKED_AT)
        laws = np.concatenate(self.laws)[::every]
        shares = [most_that_count(Gaussian(*law[:2]), Gaussian(*law[2:]), random) for law in laws]
        return self.firsts[::every], np.array(shares)


def most_that_count(bound: Gaussian, draft: Gaussian, random: np.random.Generator) -> tuple[float, float]:
    """How often one draw of `draft` (P,), and one of two, can count as a draw of `bound` (P,) at most.

    Of K independent draws it is the least of 2 - p(S) - (1 - q(S)) ** K over all sets S (maximal flow, minimal cut),
    and those where p / q is above a threshold suffice. For K = 1 that is the overlap of both.
    """
    own, others = (
        log_ratio(bound, draft, law.drawn(random.standard_normal((_DRAWS, *law.mean.shape)))) for law in (bound, draft)
    )
    one = (np.exp(np.minimum(0, -own)).mean() + np.exp(np.minimum(0, others)).mean()) / 2
    # The threshold is chosen by one half of the draws and told by the other, so that it is never too favourable.
    thresholds = np.concatenate([own, others])
    p, q = (1 - np.searchsorted(np.sort(each[::2]), thresholds, side="right") * 2 / _DRAWS for each in (own, others))
    threshold = thresholds[(2 - p - (1 - q) ** 2).argmin()]
    p_above, q_above = (float((each[1::2] > threshold).mean()) for each in (own, others))
    return float(one), min(1.0, 2 - p_above - (1 - q_above) ** 2)


def watched_paths(
    package: Path, frame: dict[str, Float64Array], sizes: tuple[int, int], drafts: str, coupling: Watched, seed: int
) -> Float64Array:
    """Paths (series, K, n), two patches drafted in every step, each seen by `coupling`. sizes: n and K."""
    forecaster = Forecaster.load(package, 1)
    with patch.object(path_sampler, "DraftLength", AlwaysDrafted), patch.object(Forecaster, "_coupling", coupling):
        return forecaster.forecast(frame, *sizes, drafts=drafts, seed=seed).paths


def main() -> None:
    parser = argparse.ArgumentParser(description="How many drafts count, and how many can at most.")
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--horizon", type=int, default=96)
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--paths", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    package = given.model or bundled_forecaster()
    sources = SOURCES[1:] if Forecaster.load(package, 1).manifest.draft else SOURCES[1:-1]
    print("| series | drafts | first draft | chain of two | two candidates, at most |\n|---|---|---|---|---|")
    for name, values in series_of(given.data).items():
        parts = windows(values, given.horizon, given.windows)
        frame = {str(number): part.known for number, part in enumerate(parts)}
        for source in sources:
            watched = Watched()
            watched_paths(package, frame, (given.horizon, given.paths), source, watched, given.seed)
            pairs = np.concatenate([each for each in watched.counted if each.shape[1] == 2])
            chain = pairs[:, 0].mean() + pairs.all(1).mean()
            _, shares = watched.most(np.random.default_rng(given.seed))
            print(
                f"| {name} | {source} | {shares[:, 0].mean():.2f} | {chain:.2f} | {shares[:, 1].mean():.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
