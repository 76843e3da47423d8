"""What to call a model by the place where it lies."""

import os
from pathlib import Path


def source_name(path: Path) -> str:
    """The name of a folder or file, not of what a link leads to; of a snapshot in the hub's cache, that of its model.

    Such a snapshot is models--OWNER--NAME/snapshots/COMMIT.
    """
    place = Path(os.path.abspath(path))
    model = place.parent.parent.name
    if place.parent.name == "snapshots" and model.startswith("models--"):
        return model.rpartition("--")[2]
    return place.name
