"""Forecasting targets whose distributions are known in advance."""

from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np
import torch

from reader_edge_export.progress import Progress
from reader_edge_runtime.arrays import Float32Array, Float64Array, Int64Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_series.export.checkpoint import write_checkpoint
from reader_edge_series.export.patch_module import PatchConfig, PatchModule
from reader_edge_series.export.series_export import export_series
from reader_edge_series.series_manifest import PatchSizes

P = 2


class FakePatches:
    """A `PatchTarget`. weight: of the last patch, beside a little of the one before. log_scale: of all values, which
    the last patch bends by `bends`.

    It tells of three coming patches; the further ones stray from what it will say. passes: chains and nodes of each.
    """

    def __init__(self, weight: float = 0.7, log_scale: float = -0.5, bends: float = 0.2) -> None:
        self.sizes = PatchSizes(
            num_layers=1,
            num_kv_heads=1,
            head_dim=P,
            num_patches=3,
            patch_size=P,
            window=64,
            min_prompt=2,
            max_prompt=8,
            max_context=64,
        )
        self._weight, self._log_scale, self._bends = weight, log_scale, bends
        self.passes: list[tuple[int, int]] = []

    def new_cache(self, num_slots: int, capacity: int) -> Cache:
        return HostCache(self.sizes, num_slots, capacity)

    def forward(
        self, cache: Cache, first_slot: int, patches: Float32Array, rows: Int64Array | Sequence[Sequence[int]]
    ) -> Float32Array:
        assert isinstance(cache, HostCache)
        num_chains, num_nodes, _ = patches.shape
        self.passes.append((num_chains, num_nodes))
        cache.extend(first_slot, num_chains, num_nodes)
        slots = np.arange(first_slot, first_slot + num_chains)[:, None]
        starts = np.array(cache.lengths)[slots]
        kept = cache.memory[0, :, 0]  # its keys are the patches
        kept[slots, starts + np.arange(num_nodes)] = patches
        places = starts + np.asarray(rows)
        last, before = kept[slots, places], kept[slots, places - 1] * (places > 0)[..., None]
        mean = self._weight * last[..., ::-1] + 0.2 * before + 0.1
        log_scale = self._log_scale + self._bends * np.tanh(last)
        further = [mean * self._weight**number + 0.3 * number for number in (1, 2)]
        gains = [np.full_like(mean, 0.3), np.full_like(mean, 0.1)] * 2
        groups = [mean, *further, log_scale, log_scale + 0.1, log_scale + 0.2, *gains]
        return np.concatenate(groups, axis=-1).astype(np.float32)


_STANDARD_ERRORS = 4.0
_LEVEL = 0.01
_NUM_PROJECTIONS = 32


def same_law(one: Float64Array, other: Float64Array) -> bool:
    """Of samples (n, d) and (m, d)."""
    gaps = moment_gaps(one, other)
    return bool((np.abs(gaps) <= most_errors(len(gaps))).all()) and projections_level(one, other) > _LEVEL


def most_errors(num_moments: int) -> float:
    """How many standard errors each of so many moments may be off: four, and more where they are many.

    Of 560 moments, those of 32 values, one lies beyond four in 28 tries by chance alone; Bonferroni's bound of 4.3
    leaves one in a hundred.
    """
    return max(_STANDARD_ERRORS, NormalDist().inv_cdf(1 - _LEVEL / 2 / num_moments))


def moment_gaps(one: Float64Array, other: Float64Array) -> Float64Array:
    """How many standard errors the d means and d (d + 1) / 2 covariances are apart."""
    center = other.mean(0)

    def moments(sample: Float64Array) -> Float64Array:
        apart = sample - center
        rows, columns = np.triu_indices(sample.shape[1])
        return np.concatenate([apart, apart[:, rows] * apart[:, columns]], axis=1)

    first, second = moments(one), moments(other)
    error = np.sqrt(first.var(0) / len(first) + second.var(0) / len(second))
    gaps: Float64Array = (first.mean(0) - second.mean(0)) / error
    return gaps


def projections_level(one: Float64Array, other: Float64Array) -> float:
    """How likely gaps like those of 32 projections are by chance alone, times their number (Bonferroni)."""
    random = np.random.default_rng(0)
    smallest = 1.0
    for _ in range(_NUM_PROJECTIONS):
        axis = random.standard_normal(one.shape[1])
        first, second = np.sort(one @ axis), np.sort(other @ axis)
        places = np.concatenate([first, second])
        shares = (np.searchsorted(each, places, side="right") / len(each) for each in (first, second))
        gap = np.abs(np.subtract(*shares)).max()
        weight = len(first) * len(second) / (len(first) + len(second))
        smallest = min(smallest, 2 * np.exp(-2 * weight * gap**2))
    return float(min(1.0, smallest * _NUM_PROJECTIONS))


def tiny_modules() -> tuple[PatchModule, PatchModule]:
    torch.manual_seed(1)
    modules = PatchModule(PatchConfig.of_sizes(2, 32, 3)), PatchModule(PatchConfig.of_sizes(1, 32, 1))
    for module in modules:
        module.train(False)
    return modules


def tiny_package(folder: Path) -> Path:
    """In `folder`, beside what it was exported from."""
    write_checkpoint(folder / "trained", *tiny_modules())
    export_series(folder / "trained", folder / "package", Progress())
    return folder / "package"
