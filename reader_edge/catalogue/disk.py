"""Bytes on the disk: how many a folder holds, whether more have room, and how many have come so far."""

import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from reader_edge.terminal.sizes import readable_size
from reader_edge_runtime.errors import CatalogueError

_INTERVAL_S = 0.1


def folder_bytes(folder: Path) -> int:
    """Bytes of the files in a folder and below; links are not followed, what vanishes meanwhile counts nothing."""
    num_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                status = os.lstat(os.path.join(parent, name))
                num_bytes += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return num_bytes


def check_room(folder: Path, num_bytes: int) -> None:
    """Raise CatalogueError where the disk of a folder has no room for so many bytes more."""
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise CatalogueError(
            f"{readable_size(num_bytes)} are to come, but the disk of '{folder}' has {readable_size(free)} left: "
            "free some space, or set XDG_CACHE_HOME to a folder on another disk."
        )


@contextmanager
def report_arrivals(folder: Path, total: int, on_progress: Callable[[int, int], None]) -> Iterator[None]:
    """While the block runs, tell how many of `total` bytes a folder holds."""
    is_done = threading.Event()

    def tell() -> None:
        while not is_done.wait(_INTERVAL_S):
            on_progress(min(folder_bytes(folder), total), total)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        is_done.set()
        teller.join()
