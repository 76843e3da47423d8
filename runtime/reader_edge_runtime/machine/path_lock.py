"""A lock on a file or folder, which goes with it when it is renamed, and ends with the process that holds it.

The id of a process says less: it is given again, and another container gives its own.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path


class PathLock:
    """Held from `take` or `of_file` to `release`.

    is_real: whether it locks: Windows locks no folder, nor what is renamed meanwhile, and some network's disks nothing.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path, waits: bool = False) -> "PathLock | None":
        """Lock a path. None where another has it, or where nothing is there, or nothing more once it was locked."""
        if sys.platform == "win32":
            return cls(None)
        try:
            access = os.O_RDONLY if path.is_dir() else os.O_RDWR  # which network's disks want
            return cls._locked(os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK), path, waits)
        except OSError:
            return None

    @classmethod
    def of_file(cls, descriptor: int, path: Path) -> "PathLock | None":
        """The same for a new file that is open, once its holder lets go; it may be closed before the release."""
        return cls(None) if sys.platform == "win32" else cls._locked(os.dup(descriptor), path, waits=True)

    @classmethod
    def new_folder(cls, path: Path) -> "PathLock":
        """Make a folder, where there is none, and lock it. Raises OSError."""
        while True:
            path.mkdir(parents=True, exist_ok=True)
            lock = cls.take(path, waits=True)
            if lock is not None:  # else another found it before it was locked, and removed it
                return lock

    @classmethod
    def _locked(cls, descriptor: int, path: Path, waits: bool) -> "PathLock | None":
        import fcntl

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
            if os.path.samestat(os.lstat(path), os.fstat(descriptor)):
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
