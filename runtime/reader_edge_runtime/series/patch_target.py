"""A forecasting model that runs: what sampling and drafting know of it, whatever executes it."""

from collections.abc import Sequence
from typing import Protocol

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.series.series_manifest import PatchSizes


class PatchTarget(Protocol):
    """The counterpart of `reader_edge_runtime.target.Target` for patches, whose rows are Gaussians."""

    sizes: PatchSizes

    def new_cache(self, num_slots: int, capacity: int) -> Cache:
        """An empty cache. Raises ConfigError where memory is short."""
        ...

    def forward(
        self, cache: Cache, first_slot: int, patches: Float32Array, rows: Int64Array | Sequence[Sequence[int]]
    ) -> Float32Array:
        """Score chains of patches (B, N, P), each behind the committed ones of slot first_slot + b.

        Their rows of the cache are written and not committed. rows: int64 (B, R), the nodes to report on. Returns
        their parameters (B, R, G * P), which are yours. Raises ProviderError.
        """
        ...
