"""What the user's cache takes, by kind, and what of it can be freed."""

import os
import re
from pathlib import Path

from reader_edge.models.store import folder_bytes, models_cache, remove_place, stored_models
from reader_edge_runtime.errors import CatalogueError
from reader_edge_runtime.machine.cache_folder import cache_folder

LABELS = {
    "models": "models",
    "unused": "unfinished, or of other versions",
    "measurements": "measurements",
    "kernels": "drafting kernels",
    "modules": "compiled modules",
}
_KEPT_BESIDE = {"measurements": ("costs", "widths"), "kernels": ("kernels",), "modules": ("iree", "engines")}
_HALF_REMOVED = re.compile(r"\..*-[0-9a-f]{8}\.partial-[0-9a-f]{16}")


def cache_sizes() -> dict[str, int]:
    """Bytes in the user's cache by what they are, which LABELS words."""
    places = [*_half_removed(), *(path for model in stored_models() for path in model.unused())]
    unused = sum(map(folder_bytes, places))
    kept = {
        what: sum(folder_bytes(_moved(cache_folder() / name)) for name in names) for what, names in _KEPT_BESIDE.items()
    }
    return {"models": folder_bytes(_moved(models_cache())) - unused, "unused": unused, **kept}


def free_unused() -> int:
    """Remove what no model uses, and tell the bytes that it took.

    Raises CatalogueError for a model at which another process is, and OSError for what cannot be removed, once those
    of the others are removed.
    """
    num_bytes, failure = 0, None
    for place in _half_removed():
        num_bytes += folder_bytes(place)
        remove_place(place)
    for model in stored_models():
        try:
            num_bytes += model.remove_unused() if model.unused() else 0
        except (CatalogueError, OSError) as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return num_bytes


def _half_removed() -> list[Path]:
    """What killed removals left."""
    return [path for path in models_cache().glob(".*") if _HALF_REMOVED.fullmatch(path.name)]


def _moved(folder: Path) -> Path:
    """Where a user has it, who put a link in its place."""
    return Path(os.path.realpath(folder))  # which takes links that lead in a circle, too
