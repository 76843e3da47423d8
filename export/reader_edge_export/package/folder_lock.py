"""A lock on a folder, which goes with the folder when it is renamed, and ends with the process that holds it.

The id of a process says less: it is given again, and another container gives its own.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path


class FolderLock:
    """Held from `take` to `release`. is_real: whether it locks: Windows and some network's disks lock no folder."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, folder: Path, waits: bool = False) -> "FolderLock | None":
        """Lock a folder. None where another has it, or where there is no folder, or no more once it was locked."""
        if sys.platform == "win32":
            return cls(None)
        import fcntl

        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            return None
        lock = cls(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.release()
            return None
        except OSError:
            lock.release()
            return cls(None)
        with suppress(OSError):
            if os.path.samestat(os.lstat(folder), os.fstat(descriptor)):
                return lock
        lock.release()
        return None

    @property
    def is_real(self) -> bool:
        return self._descriptor is not None

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
