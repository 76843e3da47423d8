"""Files in a folder that a user named: plain ones, or links to plain ones, as in the hub's cache."""

import errno
import os
import stat
from pathlib import Path

from reader_edge_runtime.errors import ReaderEdgeError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


_LFS_LINE = b"version https://git-lfs.github.com/spec/"
_MAX_LFS_BYTES = 1024


def check_plain_file(path: Path, error: type[ReaderEdgeError], remedy: str) -> None:
    """Raise `error`, with the remedy, unless there is a plain file at `path`, or a link to one.

    A pipe or a device would be read without end: none is opened to find out. A pointer of git-lfs is not the file.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            check_fetched(path, error)
            return
    except OSError as reason:
        raise error(f"'{path}' {_absence(path, reason)}: {remedy}.") from None
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    found = f"is a link to {kind}, not to a file" if path.is_symlink() else f"is {kind}, not a file"
    raise error(f"'{path}' {found}: {remedy}.")


def is_own(found: os.stat_result) -> bool:
    """Whether a file is of this process's user, or of root, who can do all that it could; on Windows any is."""
    return not hasattr(os, "geteuid") or found.st_uid in (os.geteuid(), 0)


def check_secret(path: Path, error: type[ReaderEdgeError], remedy: str) -> None:
    """Raise `error`, with the remedy, for a file that its group or others may read, or that another user owns.

    A pipe belongs to the user who made it.
    """
    found = path.stat()
    if os.name != "posix" or not stat.S_ISREG(found.st_mode):
        return
    if not is_own(found):
        raise error(f"'{path}' belongs to another user: `chown` it, and {remedy}.")
    if found.st_mode & 0o077:
        raise error(f"'{path}' may be read by others: `chmod 600` it, and {remedy}.")


def unblocked(name: str, flags: int) -> int:
    """An opener of files that were plain when they were checked: a pipe that took a file's place is not waited for."""
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def check_fetched(path: Path, error: type[ReaderEdgeError]) -> None:
    """Raise `error` where a file is what git leaves in its place: the short text by which git-lfs finds it."""
    if path.stat().st_size > _MAX_LFS_BYTES:
        return
    with path.open("rb") as file:
        is_pointer = file.read(len(_LFS_LINE)) == _LFS_LINE
    if is_pointer:
        raise error(f"'{path}' is a pointer of git-lfs and not the file itself: fetch it there with `git lfs pull`.")


def _absence(path: Path, reason: OSError) -> str:
    if reason.errno == errno.ELOOP:
        return "is a link that leads back to itself"
    if path.is_symlink() and isinstance(reason, FileNotFoundError | NotADirectoryError):
        return f"is a link to '{os.readlink(path)}', where nothing is"
    return "is missing" if isinstance(reason, FileNotFoundError) else f"cannot be read ({reason.strerror})"
