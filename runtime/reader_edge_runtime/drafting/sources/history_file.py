"""Past answers on disk, so that the next run drafts from them: an append-only file of texts.

    offset  bytes
         0      8  magic, b"\\x89redghi\\n"
         8      4  format version, 1
        12     32  tokenizer fingerprint (SHA-256)
        44     20  zeros
        64         records: uint32 tokens, uint32 CRC-32 of their bytes, then the tokens as int32

All numbers are little-endian. Writers append under a lock. A record that a killed process left unfinished fails its
checksum or its length; the next writer cuts it off. A text that was made use of is appended again; of equal texts only
the last counts. So the file is in the order of the last use, and one that grew to twice the bound is rewritten with the
texts used last and renamed into place.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from reader_edge_runtime.atomic_file import write_file
from reader_edge_runtime.errors import HistoryError

MAGIC = b"\x89redghi\n"
FORMAT_VERSION = 1
HEADER_BYTES = 64

_HEADER = struct.Struct("<8sI32s20x")
_RECORD = struct.Struct("<II")
_TOKEN_BYTES = 4
_LOCK_SECONDS = 10

Int32Array = npt.NDArray[np.int32]


class HistoryFile:
    """The history of one tokenizer, bounded to `max_tokens` tokens; least recently used texts go first."""

    def __init__(self, path: Path, tokenizer_fingerprint: bytes, max_tokens: int, vocab_size: int) -> None:
        self.path = path
        self._header = _HEADER.pack(MAGIC, FORMAT_VERSION, tokenizer_fingerprint)
        self._max_tokens = max_tokens
        self._vocab_size = vocab_size
        self._lock = _lock(path)

    def read(self) -> list[Int32Array]:
        """The last used texts that hold at most `max_tokens` tokens together, the last one last; none without a file.

        Raises HistoryError for a file of another tokenizer, of a newer format, or of another kind.
        """
        if not self.path.parent.is_dir():  # its lock would make the folder
            raise HistoryError(f"There is no folder '{self.path.parent}': make it, or name another file.")
        try:
            with self._lock:
                return self._newest(self._content())
        except (OSError, Timeout) as error:
            raise _error(self.path, error) from error

    def append(self, token_ids: Int32Array) -> None:
        """Add one text, of one longer than the bound its end. Raises HistoryError."""
        token_ids = token_ids[max(0, len(token_ids) - self._max_tokens) :]
        if not len(token_ids):
            return
        try:
            with self._lock:
                self._append(_packed(token_ids))
        except (OSError, Timeout) as error:
            raise _error(self.path, error) from error

    def _append(self, record: bytes) -> None:
        content = self._content()
        end = HEADER_BYTES + sum(_RECORD.size + text.nbytes for text in self._texts(content))
        if not len(content) or end - HEADER_BYTES + len(record) > 2 * _TOKEN_BYTES * max(self._max_tokens, 1024):
            self._rewrite([*map(_packed, self._newest(content)), record])
            return
        with self.path.open("r+b") as file:
            file.truncate(end)
            file.seek(0, os.SEEK_END)
            file.write(record)

    def _rewrite(self, records: list[bytes]) -> None:
        write_file(self.path, self._header + b"".join(records))

    def _content(self) -> npt.NDArray[np.uint8]:
        """The file as bytes, mapped; empty where there is none yet."""
        if not self.path.exists() or not self.path.stat().st_size:
            return np.empty(0, np.uint8)
        with self.path.open("rb") as file:
            header = file.read(HEADER_BYTES)
        if header[: len(MAGIC)] != MAGIC or len(header) < HEADER_BYTES:
            raise HistoryError(f"'{self.path}' is not a history file: name another one.")
        version, fingerprint = _HEADER.unpack(header)[1:]
        if version != FORMAT_VERSION:
            raise HistoryError(
                f"'{self.path}' has format version {version}, this one reads {FORMAT_VERSION}: erase it."
            )
        if fingerprint != _HEADER.unpack(self._header)[2]:
            raise HistoryError(f"'{self.path}' belongs to another tokenizer: name another file, or erase it.")
        return np.memmap(self.path, np.uint8, mode="r")

    def _texts(self, content: npt.NDArray[np.uint8]) -> Iterator[Int32Array]:
        """The texts up to the first record that is not whole."""
        at = HEADER_BYTES
        while at + _RECORD.size <= len(content):
            num_tokens, checksum = _RECORD.unpack(content[at : at + _RECORD.size].tobytes())
            begin, end = at + _RECORD.size, at + _RECORD.size + _TOKEN_BYTES * num_tokens
            if not num_tokens or end > len(content) or zlib.crc32(content[begin:end].tobytes()) != checksum:
                return
            text = np.frombuffer(content[begin:end].tobytes(), "<i4").astype(np.int32)
            if text.min() < 0 or text.max() >= self._vocab_size:
                raise HistoryError(f"'{self.path}' holds token ids that the model does not have: erase it.")
            yield text
            at = end

    def _newest(self, content: npt.NDArray[np.uint8]) -> list[Int32Array]:
        newest_first = reversed(list(self._texts(content)))
        texts = {text.tobytes(): text for text in newest_first}
        kept: list[Int32Array] = []
        room = self._max_tokens
        for text in texts.values():
            room -= len(text)
            if room < 0:
                break
            kept.append(text)
        return kept[::-1]


def erase_history(path: Path) -> None:
    """Delete a history file, whatever tokenizer it belongs to. Raises HistoryError for a file of another kind."""
    try:
        with _lock(path):
            with path.open("rb") as content:
                is_history = content.read(len(MAGIC)) == MAGIC
            if not is_history:
                raise HistoryError(f"'{path}' is not a history file: it was left alone.")
            path.unlink()
    except (OSError, Timeout) as error:
        raise _error(path, error) from error


def _error(path: Path, error: OSError | Timeout) -> HistoryError:
    if isinstance(error, Timeout):
        return HistoryError(f"'{path}' is locked by another process for {_LOCK_SECONDS} s: try again.")
    return HistoryError(f"The history '{path}' cannot be used: {error.strerror or error}.")


def _lock(path: Path) -> FileLock:
    return FileLock(f"{path}.lock", timeout=_LOCK_SECONDS)


def _packed(token_ids: Int32Array) -> bytes:
    tokens = token_ids.astype("<i4").tobytes()
    return _RECORD.pack(len(token_ids), zlib.crc32(tokens)) + tokens
