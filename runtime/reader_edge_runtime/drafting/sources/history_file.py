"""Past answers on disk, so that the next run drafts from them: an append-only file that several processes share.

Once `append` has returned, its answer survives a kill of the process. It takes no lock: it writes its record with one
system call, which the system puts behind whatever others are writing.

A file that has grown to twice its bound is rewritten under a lock, on a thread of its own, while appends go on:

    rewriting                                       appending
    1. make `.NAME.successor`                       1. write to the file
    2. read the file                                2. if there is a successor, write to that, too
    3. write the texts used last to the successor   3. if another file has the name now, begin again
    4. rename the successor to the file

An appender that finds no successor in step 2 has either written before the rewriter's step 2, which reads the record,
or looked after its step 4, which the appender's step 3 notices. A killed rewriter leaves a successor that the next
reader or rewriter removes. A text written twice counts once; texts appended during a rewrite may change places.
"""

import errno
import os
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from reader_edge_runtime.arrays import Int32Array
from reader_edge_runtime.drafting.sources import history_records as records
from reader_edge_runtime.errors import HistoryError
from reader_edge_runtime.untrusted.plain_file import is_own

_NEW_FILE_MODE = 0o600  # it holds prompts
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_LOCK_SECONDS = 10
_MIN_BOUND = 1024
# A file is hardly ever replaced twice during one append; where its identity is unstable, it always seems to be.
_MAX_TRIES = 4
_MAX_LINKS = 40  # one behind another, as in Linux


class HistoryFile:
    """The history of one tokenizer, bounded to `max_tokens` tokens.

    Symbolic links are followed to where a file is. Raises HistoryError for links that lead nowhere, or are another
    user's.
    """

    def __init__(self, path: Path, tokenizer_fingerprint: bytes, max_tokens: int, vocab_size: int) -> None:
        with _explained(path):
            self.path = _followed(path)
        self._successor = _successor(self.path)
        self._header = records.pack_header(tokenizer_fingerprint)
        self._max_tokens = max_tokens
        self._max_bytes = records.HEADER_BYTES + 2 * records.TOKEN_BYTES * max(max_tokens, _MIN_BOUND)
        self._vocab_size = vocab_size
        self._lock = _lock(self.path)
        self._rewriter: threading.Thread | None = None
        self._failure: HistoryError | None = None

    def check(self) -> None:
        """Raise HistoryError for a file of another tokenizer, of a newer format, or of another kind."""
        with _explained(self.path):
            self._content()

    def read(self) -> list[Int32Array]:
        """The last used texts that hold at most `max_tokens` tokens together, the last one last; none without a file.

        Warns of damage, and repairs it: what is whole is kept. Raises HistoryError for a file of another tokenizer, of
        a newer format, or of another kind, and for one that another user owns or may write.
        """
        if not self.path.parent.is_dir():  # its lock would make the folder
            raise HistoryError(f"There is no folder '{self.path.parent}': make it, or name another file.")
        with _explained(self.path):
            self._content()  # before a foreign file gets a lock beside it
            with self._lock:
                found = self._records()
                if found.num_damaged or found.is_cut:
                    with suppress(OSError):  # a repair that fails is no reason not to read
                        self._rewrite()
                self._successor.unlink(missing_ok=True)
        if found.num_damaged:
            places = "one place" if found.num_damaged == 1 else f"{found.num_damaged} places"
            warnings.warn(f"'{self.path}' is damaged in {places}: the past answers there are lost.", stacklevel=2)
        return self._newest(found.texts)

    def append(self, token_ids: Int32Array) -> None:
        """Add one text, of one longer than the bound its end. Raises HistoryError, also for a rewrite that failed."""
        if self._failure is not None:
            raise self._failure
        token_ids = token_ids[max(0, len(token_ids) - self._max_tokens) :]
        if not len(token_ids):
            return
        record = records.pack_record(token_ids)
        with _explained(self.path):
            any(self._append(record) for _ in range(_MAX_TRIES))

    def _append(self, record: bytes) -> bool:
        """Write a record; False if another file, which may lack it, has taken the name meanwhile."""
        with _open(self.path, os.O_CREAT) as file:
            _check_own(os.fstat(file.fileno()), self.path)
            file.seek(0)
            if header := file.read(records.HEADER_BYTES):
                records.check_header(header, self._header, self.path)
            self._write(file, record)
            written = os.fstat(file.fileno())
            with suppress(FileNotFoundError), _open(self._successor) as successor:
                if _is_successor(os.fstat(successor.fileno()), written):
                    self._write(successor, record)
            written = os.fstat(file.fileno())
        if written.st_size > self._max_bytes and (self._rewriter is None or not self._rewriter.is_alive()):
            self._rewriter = threading.Thread(target=self._rewrite_later, name="reader-edge history")
            self._rewriter.start()
        try:
            return os.path.samestat(written, self.path.stat())
        except FileNotFoundError:
            return False

    def _write(self, file: FileIO, data: bytes) -> int:
        """Append data with one call, in an empty file the header before it; returns where that begins."""
        data = data if os.fstat(file.fileno()).st_size else self._header + data
        if file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return file.tell() - len(data)

    def _rewrite_later(self) -> None:
        try:
            with _explained(self.path), suppress(FileNotFoundError), self._lock:
                if self.path.stat().st_size > self._max_bytes:  # no other process was faster
                    self._rewrite()
        except HistoryError as error:
            self._failure = error

    def _rewrite(self) -> None:
        """Keep the texts used last; only under the lock."""
        self._successor.unlink(missing_ok=True)
        try:
            with _open(self._successor, os.O_CREAT | os.O_EXCL) as successor:
                self._successor.chmod(stat.S_IMODE(self.path.stat().st_mode))
                begin = self._write(successor, b"".join(map(records.pack_record, self._newest(self._records().texts))))
                successor.seek(records.HEADER_BYTES)
                if begin > records.HEADER_BYTES:  # others have appended already; theirs are the newer texts
                    self._write(successor, successor.read(begin - records.HEADER_BYTES))
            self._successor.replace(self.path)
        finally:
            self._successor.unlink(missing_ok=True)

    def _records(self) -> records.Records:
        found = records.read_records(self._content(), self._vocab_size)
        if any(text.min() < 0 or text.max() >= self._vocab_size for text in found.texts):
            raise HistoryError(f"'{self.path}' holds token ids that the model does not have: erase it.")
        return found

    def _content(self) -> memoryview:
        """The file as bytes, mapped; empty where there is none yet. Raises HistoryError, as `read` does."""
        found = _found(self.path)
        if found is None:
            return memoryview(b"")
        _check_own(found, self.path)
        if not found.st_size:
            return memoryview(b"")
        content = np.memmap(self.path, np.uint8, mode="r").data
        records.check_header(bytes(content[: records.HEADER_BYTES]), self._header, self.path)
        return content

    def _newest(self, texts: list[Int32Array]) -> list[Int32Array]:
        distinct = {text.tobytes(): text for text in reversed(texts)}
        kept: list[Int32Array] = []
        room = self._max_tokens
        for text in distinct.values():
            room -= len(text)
            if room < 0:
                break
            kept.append(text)
        return kept[::-1]


def erase_history(path: Path) -> None:
    """Delete a history file, whatever tokenizer it belongs to. Raises HistoryError for a file of another kind."""
    with _explained(path):
        file = _followed(path)
        _found(file)
        with file.open("rb") as content:
            if content.read(len(records.MAGIC)) != records.MAGIC:
                raise HistoryError(f"'{path}' is not a history file: it was left alone.")
        with _lock(file):
            file.unlink()
            _successor(file).unlink(missing_ok=True)


def _open(path: Path, flags: int = 0) -> FileIO:
    """A file to append to, unbuffered: each write is one call."""
    _found(path)

    def opener(name: str, own_flags: int) -> int:
        return os.open(name, own_flags & ~os.O_CREAT | flags | _NO_LINK, _NEW_FILE_MODE)

    return FileIO(path, "a+", opener=opener)


def _found(path: Path) -> os.stat_result | None:
    """What there is of a file. Raises HistoryError for what is no regular file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise HistoryError(f"'{path}' is not a regular file: name another one.")
    return found


def _check_own(found: os.stat_result, path: Path) -> None:
    """Raise HistoryError for a file by which another user could read prompts, or choose what is drafted."""
    if not is_own(found):
        raise HistoryError(f"The history '{path}' belongs to another user: `chown` it, or name another file.")
    if os.name == "posix" and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise HistoryError(
            f"The history '{path}' can be written by its group or others: `chmod go-w` it, or name another file."
        )


def _followed(path: Path) -> Path:
    """Where a path leads; `HistoryFile` says by which links."""
    target, place = Path(os.path.realpath(path)), path
    for _ in range(_MAX_LINKS):
        if not place.is_symlink():
            break
        if not is_own(place.lstat()):
            raise HistoryError(f"'{place}' is a link of another user's: name the file that is meant, or another one.")
        place = place.parent / place.readlink()
    if path.is_symlink() and not target.exists():
        raise HistoryError(f"'{path}' is a link to '{target}', where nothing is: name that file, or another one.")
    return target


def _is_successor(found: os.stat_result, file: os.stat_result) -> bool:
    """Whether a file that bears a successor's name is one, and none that another user made to read what is appended.

    The user of the file rewrites it, with the mode that it had.
    """
    is_wider = bool(found.st_mode & ~file.st_mode & 0o777)
    return is_own(found) and stat.S_ISREG(found.st_mode) and found.st_nlink <= 1 and not is_wider


def _successor(path: Path) -> Path:
    """The file that a rewrite makes. Others must find it, so its name cannot hold a process id."""
    return path.parent / f".{path.name}.successor"  # also of "/", which has no name


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn a failure of the file system, or of the lock, into a HistoryError."""
    try:
        yield
    except Timeout:
        raise HistoryError(f"'{path}' is locked by another process for {_LOCK_SECONDS} s: try again.") from None
    except OSError as error:
        raise HistoryError(
            f"The history '{error.filename or path}' cannot be used: {error.strerror or error}."
        ) from error


def _lock(path: Path) -> FileLock:
    return FileLock(f"{path}.lock", timeout=_LOCK_SECONDS, mode=_NEW_FILE_MODE)
