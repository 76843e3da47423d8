"""Files and folders that appear whole or not at all: made as `.NAME.partial-PID-THREAD`, then renamed.

What a killed process leaves is removed by the next write to the same target.
"""

import errno
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_NO_PLACE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR),
    *(errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP),
)


@contextmanager
def new_file(path: Path, mode: int = 0o666, is_durable: bool = False) -> Iterator[BinaryIO]:
    """A file that takes the name `path` when the block ends well, and vanishes when it does not.

    mode: permissions of a new file, less the umask; a replaced file hands its own on. A symbolic link is followed.
    is_durable: the file survives a loss of power once the block has been left. Raises OSError, which names `path`,
    also for a device or a folder.
    """
    target = Path(os.path.realpath(path))
    partial = temporary_name(target)
    try:
        old_mode = _regular_file_mode(target)
        clear_leftovers(target)
        first_mode = mode if old_mode is None else 0o600
        with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, first_mode)) as file:
            yield file
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        if old_mode is not None:
            partial.chmod(old_mode)
        partial.replace(target)
        if is_durable:
            _sync_folder(target.parent)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # a failed write has no name, the others a temporary one
        raise
    finally:
        with suppress(OSError):
            partial.unlink()


def write_file(path: Path, data: bytes) -> None:
    """Put `data` in place of a file, or make it. Raises OSError."""
    with new_file(path) as file:
        file.write(data)


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
    """A name beside `target` that only the calling thread uses."""
    return target.with_name(f".{target.name}.{kind}-{os.getpid()}-{threading.get_native_id()}")


def temporary_names(target: Path, kind: str = "partial") -> dict[Path, int]:
    """Temporary files and folders of `target` that are there, and the id of the process that made each."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.{kind}-([1-9][0-9]{{0,9}})-[0-9]+")
    names = os.listdir(target.parent) if target.parent.exists() else []
    matches = [match for name in names if (match := pattern.fullmatch(name))]
    return {target.with_name(match[0]): int(match[1]) for match in matches}


def leftovers(target: Path, kind: str = "partial") -> list[Path]:
    """Temporary files and folders of `target` whose process is gone, or had the ids that this thread has now."""
    own, names = temporary_name(target, kind), temporary_names(target, kind)
    return [path for path, process_id in names.items() if path == own or not is_living(process_id)]


def clear_leftovers(target: Path) -> None:
    """Remove the partial files and folders of `target` whose writers are gone; what resists stays."""
    for path in leftovers(target):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def is_living(process_id: int) -> bool:
    """Whether there is a process of that id; on Windows it is taken to be."""
    if os.name == "nt":  # where signal 0 is no question but Ctrl-C
        return True
    try:
        os.kill(process_id, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's
    return True


def _regular_file_mode(path: Path) -> int | None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return stat.S_IMODE(mode)


def _sync_folder(folder: Path) -> None:
    with suppress(PermissionError):  # Windows opens no folder
        folder_id = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(folder_id)
        finally:
            os.close(folder_id)
