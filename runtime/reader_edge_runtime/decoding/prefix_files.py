"""The files of a prefix cache: written in the background, checked when they are read, erased where others need room.

    DIR/AB/CDEF....rows      KV rows of a chunk of some text
    DIR/AB/CDEF....states    what recurrent layers keep of the text until the chunk's end, where that was noted
    DIR/AB/CDEF....drafts    what drafting learned of requests of the same salt

A name is a digest, which the file bears too: see `PrefixCache`. Several processes may use one folder: files appear
whole or not at all, and one that another process has erased is not found.
"""

import logging
import os
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from reader_edge_runtime.array_file import ArrayFormat
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.atomic_file import clear_leftovers
from reader_edge_runtime.errors import ConfigError, PrefixError
from reader_edge_runtime.machine.cache_folder import make_private
from reader_edge_runtime.untrusted.plain_file import is_own

FORMAT = ArrayFormat(
    magic=b"\x89redgpx\n",
    error=PrefixError,
    name="a prefix cache",
    owner="text",
    remedy="it is erased",
    other="it is erased",
)
_FOLDER = re.compile(r"[0-9a-f]{2}")
_FILE = re.compile(r"\.?([0-9a-f]{62}\.(?:rows|states|drafts))(?:\.partial-[0-9a-f]+)?")
_MOST_WAITING = 64 << 20  # bytes to write; what comes beyond is not kept
_TABLE_BYTES = 1 << 12  # of a file beside its arrays, at most

_LOG = logging.getLogger("reader_edge.prefix_cache")


class PrefixFiles:
    """max_bytes: of all files together. Raises PrefixError for a folder that cannot be, or that others may write."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        _check_place(folder)
        self._folder = folder
        self._max_bytes = max_bytes
        self._num_unseen = max_bytes  # bytes written since the folder was last looked through
        self._jobs: deque[Callable[[], None]] = deque()
        self._waiting: dict[Path, int] = {}  # bytes of files that are to be written
        self._writer: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_reported = False

    def check_room(self, num_bytes: int) -> None:
        """Raise ConfigError where there is less."""
        num_bytes += _TABLE_BYTES
        if num_bytes > self._max_bytes:
            raise ConfigError(
                f"prefix_bytes is {self._max_bytes}, but a prefix cache of this model takes {num_bytes} at least: "
                "raise it (--prefix-bytes)."
            )

    def has(self, digest: bytes, kind: str) -> bool:
        return self._path(digest, kind).is_file()

    def read(self, digest: bytes, kind: str, max_bytes: int) -> dict[str, Array] | None:
        """The arrays of a file, max_bytes at most; None where it is gone, or is not what was written, and is erased."""
        path = self._path(digest, kind)
        try:
            return FORMAT.read(path, digest, max_bytes + _TABLE_BYTES)
        except PrefixError as error:
            if path.exists():
                self.refuse(digest, kind, str(error))
            return None

    def refuse(self, digest: bytes, kind: str, reason: str) -> None:
        """Erase a file that cannot be used."""
        self._report(reason)
        self.erase(digest, kind)

    def erase(self, digest: bytes, kind: str) -> None:
        with suppress(OSError):
            self._path(digest, kind).unlink()

    def put(self, digest: bytes, kind: str, arrays: Mapping[str, Array], is_renewed: bool = False) -> bool:
        """Have a file written soon, of copies of these arrays, where there is none; False where too much waits.

        is_renewed: in place of the one that is there.
        """
        path, num_bytes = self._path(digest, kind), sum(array.nbytes for array in arrays.values())
        with self._lock:
            num_waiting = sum(self._waiting.values())
            if path in self._waiting or (not is_renewed and path.is_file()):
                return True
            if num_waiting and num_waiting + num_bytes > _MOST_WAITING:
                return False
            self._waiting[path] = num_bytes
        copies = {name: np.array(array) for name, array in arrays.items()}
        self._later(partial(self._write, path, digest, copies, num_bytes))
        return True

    def note_use(self, digests: Sequence[bytes]) -> None:
        """Note that a text was used, given its chunks from the first on: the last ones go before those."""
        self._later(partial(self._touch, list(digests), time.time_ns()))

    def flush(self) -> None:
        """Wait until all is written."""
        while (writer := self._writer) is not None:
            writer.join()

    def _path(self, digest: bytes, kind: str) -> Path:
        name = digest.hex()
        return self._folder / name[:2] / f"{name[2:]}.{kind}"

    def _later(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._jobs.append(job)
            if self._writer is None:  # the process waits for it at its end
                self._writer = threading.Thread(target=self._work, name="reader-edge prefix cache")
                try:
                    self._writer.start()
                except RuntimeError:  # no thread can be had
                    self._writer = None
                    self._jobs.clear()
                    self._waiting.clear()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._writer = None
                    return
                job = self._jobs.popleft()
            job()

    def _write(self, path: Path, digest: bytes, arrays: Mapping[str, Array], num_bytes: int) -> None:
        try:
            make_private(path.parent, self._folder)  # first: all of it may have been erased
            if self._make_room(num_bytes + _TABLE_BYTES):
                FORMAT.write(path, digest, arrays, mode=0o600)
        except (OSError, PrefixError, MemoryError) as error:
            self._report(str(error))
        with self._lock:
            self._waiting.pop(path, None)

    def _make_room(self, num_bytes: int) -> bool:
        """Erase what was used longest ago where a file of so many bytes needs its room; whether it has room then.

        The folder is looked through when a 64th of the bound was written, and brought down to 7/8 of it from 15/16 on:
        so four processes that write at once keep the bound. What would take half of it takes none.
        """
        if num_bytes > self._max_bytes // 2:
            return False
        self._num_unseen += num_bytes
        if self._num_unseen < self._max_bytes // 64:
            return True
        files = sorted(_files(self._folder))
        self._num_unseen = num_bytes
        total = num_bytes + sum(size for _, size, _ in files)
        if total > self._max_bytes * 15 // 16:
            for _, size, path in files:
                if total <= self._max_bytes * 7 // 8:
                    break
                with suppress(OSError):
                    path.unlink()
                total -= size
        return total <= self._max_bytes

    def _touch(self, digests: Sequence[bytes], now: int) -> None:
        for number, digest in enumerate(digests):
            for kind in ("rows", "states"):
                with suppress(OSError):
                    os.utime(self._path(digest, kind), ns=(now - number, now - number))

    def _report(self, reason: str) -> None:
        """Once: a fault costs time, and no answer."""
        if not self._is_reported:
            self._is_reported = True
            _LOG.warning("A part of the prefix cache is left out: %s Later faults are not shown.", reason)


def erase_prefixes(folder: Path) -> int:
    """Delete the files of a prefix cache, and the folders that are empty then; returns how many bytes they had.

    Raises PrefixError for a folder without such files, which is left alone.
    """
    try:
        files = {path: num_bytes for _, num_bytes, path in _files(folder)}
        for path in files:
            path.unlink(missing_ok=True)  # a server may have made room meanwhile
    except OSError as error:
        raise PrefixError(f"'{error.filename or folder}' cannot be erased: {error.strerror or error}.") from error
    if not files:
        raise PrefixError(f"'{folder}' holds no prefix cache: it was left alone.")
    for emptied in (*{path.parent for path in files}, folder):
        with suppress(OSError):
            emptied.rmdir()
    return sum(files.values())


def _files(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """When each file was last used, its bytes, and its path; what killed processes left of others is removed."""
    for part in os.scandir(folder):
        if not _FOLDER.fullmatch(part.name) or not part.is_dir(follow_symlinks=False):
            continue
        for entry in _entries(part):
            name = _FILE.fullmatch(entry.name)
            if name is None or not entry.is_file(follow_symlinks=False):
                continue
            if entry.name.startswith("."):
                clear_leftovers(Path(part.path, name[1]))
                continue
            with suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                yield found.st_mtime_ns, found.st_size, Path(entry.path)


def _entries(part: "os.DirEntry[str]") -> list["os.DirEntry[str]"]:
    with suppress(FileNotFoundError):  # another process has erased it
        return list(os.scandir(part))
    return []


def _check_place(folder: Path) -> None:
    try:
        make_private(folder, folder)
        _check_safe(folder, folder.stat())
        for part in list(os.scandir(folder)):
            if _FOLDER.fullmatch(part.name):
                with suppress(FileNotFoundError):
                    _check_safe(Path(part.path), part.stat(follow_symlinks=False))
    except OSError as error:
        raise PrefixError(
            f"'{folder}' can be no prefix cache ({error.strerror or error}): name another folder."
        ) from error


def _check_safe(folder: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise PrefixError(f"The folder '{folder}' of a prefix cache is a link: remove it, or name another folder.")
    if not is_own(found):
        raise PrefixError(f"The prefix cache '{folder}' belongs to another user: name another folder.")
    if os.name == "posix" and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PrefixError(
            f"The prefix cache '{folder}' can be written by its group or others: `chmod go-w` it, or name another "
            "folder."
        )
