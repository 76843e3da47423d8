"""Files and folders that appear whole or not at all: made as `.NAME.partial-RANDOM`, then renamed.

The process that makes one locks it. What a killed process leaves is free, and removed by the next write to the same
target. Where nothing can be locked, it stays.
"""

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import reduce
from operator import and_
from pathlib import Path
from typing import BinaryIO

from reader_edge_runtime.machine.path_lock import PathLock

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_NO_PLACE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR),
    *(errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP),
)


@contextmanager
def new_file(path: Path, mode: int = 0o666, is_durable: bool = False, keeps_mode: bool = True) -> Iterator[BinaryIO]:
    """A file that takes the name `path` when the block ends well, and vanishes when it does not.

    mode: permissions of a new file, less the umask. keeps_mode: whether a file that is replaced hands its own on; one
    that another user left there widens nothing. A symbolic link is followed.
    is_durable: the file survives a loss of power once the block has been left. Raises OSError, which names `path`,
    also for a device or a folder.
    """
    target = Path(os.path.realpath(path))
    partial, lock = temporary_name(target), None
    try:
        first_mode, last_mode = _modes(target, mode, keeps_mode)
        clear_leftovers(target)
        file, lock = _new_locked(partial, first_mode)
        with file:
            yield file
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        if last_mode is not None:
            partial.chmod(last_mode)
        partial.replace(target)
        if is_durable:
            _sync_folder(target.parent)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # a failed write has no name, the others a temporary one
        raise
    finally:
        with suppress(OSError):
            partial.unlink()
        if lock is not None:
            lock.release()


def write_file(path: Path, data: bytes) -> None:
    """Put `data` in place of a file, or make it. Raises OSError."""
    with new_file(path) as file:
        file.write(data)


def mode_of_all(paths: Iterable[Path]) -> int:
    """The mode of a file made of these: it grants no user what one of them denies."""
    return 0o600 | reduce(and_, (stat.S_IMODE(path.stat().st_mode) for path in paths), 0o666)


def check_writable(path: Path, num_bytes: int = 0) -> None:
    """Raise the OSError that so many bytes in a `new_file` would: for work that fills the file only at its end."""

    class Unwritten(Exception):  # noqa: N818 - no error
        """Leaves what would be replaced as it is."""

    with suppress(Unwritten), new_file(path) as file:
        file.write(bytes(num_bytes))
        file.flush()
        raise Unwritten


def write_failure(
    path: Path, error: OSError, again: str = "try again", elsewhere: str = "name a file in a folder that can be written"
) -> str:
    """A sentence that says which file was not written, why, and what to do about that.

    again: what to do once there is room. elsewhere: what to do where no such file can be.
    """
    remedy = elsewhere if error.errno in _NO_PLACE else f"see to its disk, then {again}"
    remedy = f"free some space, then {again}" if error.errno in FULL_DISK else remedy
    return f"'{path}' cannot be written ({error.strerror or error}): {remedy}."


def temporary_name(target: Path, kind: str = "partial") -> Path:
    """A name beside `target` that nobody else has, in this or another container."""
    return target.with_name(f".{target.name}.{kind}-{secrets.token_hex(8)}")


def temporary_names(target: Path, kind: str = "partial") -> list[Path]:
    """Temporary files and folders of `target` that are there, those with the two ids of earlier versions included."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.{kind}-([0-9a-f]{{16}}|[1-9][0-9]{{0,9}}-[0-9]+)")
    names = os.listdir(target.parent) if target.parent.exists() else []
    return [target.with_name(name) for name in names if pattern.fullmatch(name)]


def leftovers(target: Path, kind: str = "partial") -> Iterator[Path]:
    """Temporary files and folders of `target` that nobody makes any more, each locked until the next is taken."""
    for path in temporary_names(target, kind):
        lock = PathLock.take(path)
        if lock is not None:
            try:
                if lock.is_real:
                    yield path
            finally:
                lock.release()


def clear_leftovers(target: Path) -> None:
    """Remove the partial files and folders of `target` whose makers are gone; what resists stays."""
    for path in leftovers(target):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def _new_locked(path: Path, mode: int) -> tuple[BinaryIO, PathLock]:
    """A new file, which nobody takes for a leftover until the lock is released."""
    while True:
        file = open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
        lock = PathLock.of_file(file.fileno(), path)
        if lock is not None:  # else another found it before it was locked, and removed it
            return file, lock
        file.close()


def _modes(path: Path, mode: int, keeps_mode: bool) -> tuple[int, int | None]:
    """Permissions of a file while it is written, and those that it gets then, if there are others."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return mode, None
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    if not keeps_mode:
        return mode, None
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        return 0o600 | (mode & found.st_mode), None
    return 0o600, stat.S_IMODE(found.st_mode)


def _sync_folder(folder: Path) -> None:
    with suppress(PermissionError):  # Windows opens no folder
        folder_id = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(folder_id)
        finally:
            os.close(folder_id)
