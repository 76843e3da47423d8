"""What MLX did to weights, as `quantization` of a config.json says it; without PyTorch, by which they are read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

AFFINE, MXFP4, NVFP4 = "affine", "mxfp4", "nvfp4"
_SUPPOSED = {AFFINE: (64, 4), MXFP4: (32, 4), "mxfp8": (32, 8), NVFP4: (16, 4)}  # group size and bits, by mode
_BITS = (1, 2, 3, 4, 5, 6, 8)
_GROUP_SIZES = (32, 64, 128)


@dataclass(frozen=True, slots=True)
class MlxScheme:
    """What a config says of a module's weights."""

    mode: str
    group_size: int
    bits: int


def mlx_schemes(settings: Mapping[str, Any]) -> dict[str, MlxScheme | None]:
    """Of the modules that differ, by their paths, and of all others at ""; None where it is not read."""
    differing = {path: own for path, own in settings.items() if isinstance(own, dict)}
    return {path: _scheme(own) for path, own in {**differing, "": settings}.items()}


def _scheme(settings: Mapping[str, Any]) -> MlxScheme | None:
    mode = settings.get("mode") or AFFINE
    if not isinstance(mode, str) or mode not in _SUPPOSED:
        return None
    group_size, bits = (
        settings.get(key) or own for key, own in zip(("group_size", "bits"), _SUPPOSED[mode], strict=True)
    )
    is_known = bits in _BITS and group_size in _GROUP_SIZES if mode == AFFINE else (group_size, bits) == _SUPPOSED[mode]
    return MlxScheme(mode, group_size, bits) if is_known and {type(group_size), type(bits)} == {int} else None
