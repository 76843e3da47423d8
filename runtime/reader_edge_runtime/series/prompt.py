"""A series' past as a model reads it."""

from dataclasses import dataclass

from reader_edge_runtime.arrays import Float32Array, Float64Array
from reader_edge_runtime.series.scaling import Scaling
from reader_edge_runtime.series.series_manifest import PatchSizes

_BEYOND = 2.0  # on the scaled axis, beyond what the prompt holds: in values, at most nine times as far


@dataclass(frozen=True, slots=True)
class Prompt:
    """past: all that is known, scaled, float64 (n,). patches: its last ones, float32 (N, P). num_paths: that follow."""

    scaling: Scaling
    past: Float64Array
    patches: Float32Array
    num_paths: int

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the largest value of its paths, scaled."""
        return float(self.patches.min()) - _BEYOND, float(self.patches.max()) + _BEYOND

    @classmethod
    def of(cls, values: Float64Array, sizes: PatchSizes, num_paths: int) -> "Prompt":
        """values: finite, of at least `min_prompt` patches and not all alike."""
        num_patches = min(len(values) // sizes.patch_size, sizes.max_prompt)
        last = values[len(values) - num_patches * sizes.patch_size :]
        scaling = Scaling.of(last)
        patches = scaling.scaled(last).reshape(num_patches, sizes.patch_size).astype("float32")
        return cls(scaling, scaling.scaled(values), patches, num_paths)
