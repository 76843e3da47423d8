"""Files that are read as a whole: never more of them than their kind may have, whatever size they claim."""

import errno
from pathlib import Path


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """A file's content; a pipe's and a device's too. Raises OSError, also where it has more than `max_bytes`."""
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"more than the {max_bytes >> 20} MiB that are read: split it", str(path))
    return data
