"""The Python interface of forecasts: loads a package, and forecasts series."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.config import EngineConfig
from reader_edge_runtime.errors import ConfigError, SeriesError
from reader_edge_runtime.package.model_package import PackageFiles
from reader_edge_runtime.untrusted.user_input import given_path, short_repr
from reader_edge_series.checked_series import DataFrameLike, series_of
from reader_edge_series.patch_drafts import Analogs, OwnPatches, SmallModel
from reader_edge_series.patch_target import HostPatches, PatchTarget
from reader_edge_series.path_sampler import ForecastStats, PathSampler
from reader_edge_series.paths import PatchDrafts
from reader_edge_series.prompt import Prompt
from reader_edge_series.series_manifest import DRAFT_NAME, MODEL_NAME, SeriesManifest, read_series_manifest


@dataclass(frozen=True, slots=True)
class Forecast:
    """names: of S series. paths: float64 (S, num_paths, horizon), in the units of the series."""

    names: Sequence[str]
    paths: Float64Array
    stats: ForecastStats

    def mean(self) -> Float64Array:
        """(S, horizon), over the paths."""
        mean: Float64Array = self.paths.mean(1)
        return mean

    def quantiles(self, levels: Sequence[float]) -> Float64Array:
        """(S, len(levels), horizon). Raises ConfigError for a level that is not between 0 and 1."""
        for level in levels:
            if not 0 <= level <= 1:
                raise ConfigError(f"A quantile is {level!r:.80}, but must be from 0 to 1.")
        found: Float64Array = np.moveaxis(np.quantile(self.paths, levels, axis=1), 0, 1)
        return found


DRAFTS = ("own", "model", "analogs", "none")

_MOST_PATHS = 64  # in one pass
_MOST_SAMPLES = 1 << 16  # of a series
_MAX_BYTES = 1 << 30  # of a forecast's paths
_VALUE_BYTES = 512  # of a value to come, beside its paths: mean, quantiles, time


class Forecaster:
    """Forecasts by one model. What it learns of times and of drafts serves the next forecast; the law never changes."""

    def __init__(self, manifest: SeriesManifest, target: PatchTarget, small: PatchTarget | None) -> None:
        self.manifest = manifest
        self._target, self._small = target, small
        self._samplers: dict[str, PathSampler] = {}

    @classmethod
    def load(cls, path: str | os.PathLike[str], threads: int = 0) -> "Forecaster":
        """A package of `reader-edge series export`, its files checked. threads: those of `EngineConfig`.

        Raises ConfigError, PackageError, ProviderError or InstallationError.
        """
        threads = EngineConfig(threads=threads).threads
        folder = given_path(path, "The package")
        manifest = read_series_manifest(folder)
        package = PackageFiles(folder, manifest.files)
        package.check_files()
        target, small = HostPatches.open(package, MODEL_NAME, manifest.model, threads), None
        if manifest.draft is not None:
            small = HostPatches.open(package, DRAFT_NAME, manifest.draft, threads)
        return cls(manifest, target, small)

    @property
    def max_horizon(self) -> int:
        """Values that a forecast has at most."""
        return self.manifest.model.max_horizon

    def forecast(
        self, frame: DataFrameLike, horizon: int, num_paths: int = 64, *, drafts: str = "own", seed: int | None = None
    ) -> Forecast:
        """Sample how each series of a frame goes on.

        frame: a dict or data frame, a column a series, oldest value first. horizon: values to come. drafts: one of
        DRAFTS, where further patches are proposed from; "own" is the model itself. seed: the same one gives the same
        paths, by the same arguments on the same machine: what earlier forecasts and the clock taught then counts for
        nothing, and a rule says how much is drafted.
        Raises SeriesError for series that cannot be forecast, ConfigError for other arguments.
        """
        sizes = self.manifest.model
        _check_number("horizon", horizon, self.max_horizon)
        _check_number("num_paths", num_paths, _MOST_SAMPLES)
        series = series_of(frame, sizes.min_prompt * sizes.patch_size)
        _check_size(len(series), num_paths, horizon)
        for name, values in series.items():
            last = values[-sizes.max_prompt * sizes.patch_size :]
            if (last == last[0]).all():
                raise SeriesError(
                    f"Series {short_repr(name)} is {last[0]:g} in all of its last {len(last)} values: nothing is to be "
                    "forecast of it; leave it out."
                )
        sampler = self._sampler(drafts, is_timed=seed is None)
        stats, random = ForecastStats(), np.random.default_rng(seed)
        num_patches = -(-horizon // sizes.patch_size)
        paths: dict[str, list[Float64Array]] = {name: [] for name in series}
        for batch in _batches(list(series), num_paths):
            prompts = [Prompt.of(series[name], sizes, number) for name, number in batch]
            patches = sampler.sample(prompts, num_patches, random, stats)
            first = 0
            for (name, number), prompt in zip(batch, prompts, strict=True):
                values = patches[first : first + number].reshape(number, -1)[:, :horizon]
                paths[name].append(prompt.scaling.unscaled(values))
                first += number
        return Forecast(list(series), np.stack([np.concatenate(each) for each in paths.values()]), stats)

    def _sampler(self, drafts: str, is_timed: bool) -> PathSampler:
        """One that goes on from earlier forecasts, or one that knows of none and asks no clock."""
        if drafts not in DRAFTS:
            raise ConfigError(f"drafts is {short_repr(drafts)}, but must be one of {', '.join(DRAFTS)}.")
        if not is_timed:
            return PathSampler(self._target, self._source(drafts), is_timed=False)
        if drafts not in self._samplers:
            self._samplers[drafts] = PathSampler(self._target, self._source(drafts))
        return self._samplers[drafts]

    def _source(self, name: str) -> PatchDrafts | None:
        sizes = self.manifest.model
        if name == "model":
            if self._small is None:
                raise ConfigError("This package has no small model to draft with: take 'own' or 'analogs'.")
            return SmallModel(self._small)
        return {"own": OwnPatches(sizes.num_patches), "analogs": Analogs(sizes.patch_size)}.get(name)


def _batches(names: list[str], num_paths: int) -> Iterator[list[tuple[str, int]]]:
    """Paths of series that pass together: names, and how many of each."""
    batch: list[tuple[str, int]] = []
    room = _MOST_PATHS
    for name in names:
        left = num_paths
        while left:
            number = min(left, room)
            batch.append((name, number))
            left, room = left - number, room - number
            if not room:
                yield batch
                batch, room = [], _MOST_PATHS
    if batch:
        yield batch


def _check_size(num_series: int, num_paths: int, horizon: int) -> None:
    num_bytes = num_series * horizon * (8 * num_paths + _VALUE_BYTES)
    if num_bytes > _MAX_BYTES:
        raise ConfigError(
            f"{num_series} series, {num_paths} paths each and {horizon} values a path take {num_bytes / 1e9:.1f} GB, "
            f"more than the {_MAX_BYTES / 1e9:.1f} GB of a forecast: give fewer series or paths at once, or a shorter "
            "horizon."
        )


def _check_number(name: str, value: int, most: int) -> None:
    if type(value) is not int or not 0 < value <= most:
        raise ConfigError(f"{name} is {short_repr(value)}, but must be a whole number from 1 to {most}.")
