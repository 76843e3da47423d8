"""Builds datastores: documents go in as token ids, a file comes out."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.atomic_file import new_file, write_failure
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.header import (
    HEADER_BYTES,
    KEY_STEP,
    MAX_VOCAB_SIZE,
    DatastoreFacts,
    DatastoreHeader,
    token_bytes_for,
)
from reader_edge_runtime.errors import DatastoreError, InstallationError

OnPhase = Callable[[str], None]

# libdivsufsort's 32-bit form; beyond it a token would cost twice the memory.
_MAX_TEXT_BYTES = 2**31 - 1
_CHUNK = 1 << 22
# Up to here no library is needed.
_MAX_SHORT = 1 << 16


class DatastoreBuilder:
    """Documents of one tokenizer, collected until `write`."""

    def __init__(self, tokenizer_fingerprint: str, vocab_size: int) -> None:
        if not 1 <= vocab_size <= MAX_VOCAB_SIZE:
            raise DatastoreError(f"A vocabulary of {vocab_size} tokens is outside 1 to {MAX_VOCAB_SIZE}.")
        self._fingerprint = tokenizer_fingerprint
        self._vocab_size = vocab_size
        self._token_bytes = token_bytes_for(vocab_size)
        self._type = np.dtype(f"<u{self._token_bytes}")
        self._stream = bytearray()
        self._num_documents = 0
        self._is_inside = False

    @property
    def num_tokens(self) -> int:
        return len(self._stream) // self._token_bytes - self._num_documents

    def memory_bytes(self, num_more: int = 0) -> int:
        """Peak memory of `write` in bytes, what is held already included, once num_more tokens have been added."""
        num_positions = len(self._stream) // self._token_bytes + 1 + num_more
        return num_positions * (self._token_bytes + 5 * _bytes_sorted(self._token_bytes))

    def add(self, token_ids: Sequence[int]) -> None:
        """Continue the current document. Raises DatastoreError for an unknown token id, and for too many tokens."""
        if not len(token_ids):
            return
        ids = np.asarray(token_ids, np.int64)
        if ids.min() < 0 or ids.max() >= self._vocab_size:
            raise DatastoreError(f"Token id {ids[(ids < 0) | (ids >= self._vocab_size)][0]} is outside the vocabulary.")
        self._append(ids.astype(self._type).tobytes())
        self._is_inside = True

    def end_document(self) -> None:
        """End the current document, unless it has no tokens."""
        if self._is_inside:
            self._stream += b"\xff" * self._token_bytes
            self._num_documents += 1
            self._is_inside = False

    def add_datastore(self, datastore: Datastore) -> None:
        """Add the documents of another datastore. Raises DatastoreError for another tokenizer's, or a damaged one."""
        header = datastore.header
        if (header.tokenizer_fingerprint, header.vocab_size) != (self._fingerprint, self._vocab_size):
            raise DatastoreError(f"'{datastore.path}' was built with another tokenizer than the others.")
        datastore.check_body()
        tokens = datastore.tokens
        is_end = tokens == np.iinfo(tokens.dtype).max
        if not is_end[-1] or is_end.sum() != header.num_documents or tokens[~is_end].max() >= self._vocab_size:
            raise DatastoreError(f"'{datastore.path}' is not sound: do not trust this file, build it again.")
        self.end_document()
        self._append(tokens.tobytes())
        self._num_documents += header.num_documents

    def write(self, path: Path, facts: DatastoreFacts, on_phase: OnPhase, mode: int = 0o666) -> DatastoreHeader:
        """Sort, and write or replace a file. mode: its permissions, less the umask.

        Raises DatastoreError when there are no tokens, or no room for it.
        """
        self.end_document()
        if not self.num_tokens:
            raise DatastoreError("The corpus holds no token: give files with text.")
        stream = np.frombuffer(self._stream, self._type)
        on_phase("sorting")
        # Suffixes that begin at an end mark are the last ones: nothing begins with it.
        suffixes = sort_suffixes(stream)[: self.num_tokens]
        on_phase("writing")
        try:
            with new_file(path, mode, is_durable=True, keeps_mode=False) as file:
                return self._write_parts(file, facts.pack(), stream, suffixes)
        except OSError as error:
            raise DatastoreError(write_failure(path, error, "build it again")) from error

    def _write_parts(
        self, file: BinaryIO, facts: bytes, stream: npt.NDArray[Any], suffixes: npt.NDArray[np.uint32]
    ) -> DatastoreHeader:
        header = DatastoreHeader(
            self._vocab_size, self.num_tokens, self._num_documents, len(facts), self._fingerprint, "00" * 32
        )
        parts = {header.tokens_at: stream, header.suffixes_at: suffixes, header.keys_at: _keys(stream, suffixes)}
        file.write(bytes(HEADER_BYTES) + facts)
        digest = hashlib.sha256(facts)
        for offset, part in parts.items():
            for piece in (bytes(offset - file.tell()), part.data.cast("B")):
                file.write(piece)
                digest.update(piece)
        header = replace(header, body_sha256=digest.hexdigest())
        file.seek(0)
        file.write(header.pack())
        return header

    def _append(self, data: bytes) -> None:
        limit = _MAX_TEXT_BYTES // _bytes_sorted(self._token_bytes)
        if (len(self._stream) + len(data)) // self._token_bytes >= limit:
            raise DatastoreError(
                f"The corpus has more than {limit} tokens, the most that one datastore can hold: "
                "build several and name them all."
            )
        self._stream += data
        if len(self._stream) // self._token_bytes > _MAX_SHORT:
            _long_sorter()  # its lack is reported now, not when all has been collected


def _keys(stream: npt.NDArray[Any], suffixes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """First two tokens of every KEY_STEP-th suffix, (K, 2)."""
    starts = suffixes[::KEY_STEP].astype(np.int64)
    keys = np.stack([stream[starts], stream[starts + 1]], axis=1).astype(np.uint32)
    keys[keys == np.iinfo(stream.dtype).max] = 0xFFFFFFFF
    return keys


def _long_sorter() -> Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.int32]]:
    """The library's sort. Raises InstallationError where it is missing."""
    try:
        from pydivsufsort import divsufsort
    except ImportError:
        raise InstallationError(
            "Building a datastore needs pydivsufsort: install it with pip install 'reader-edge[datastore]'."
        ) from None
    sort: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.int32]] = divsufsort
    return sort


def sort_suffixes(stream: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Positions of a stream of uint16 ids, or uint32 ids below 2**24 - 1, in the order of the suffixes they begin.

    The type's highest value may occur too, as an end mark that is above all ids. Raises InstallationError.
    """
    if len(stream) <= _MAX_SHORT:
        return _sort_short(stream)
    divsufsort = _long_sorter()
    width = _bytes_sorted(stream.itemsize)
    # Big-endian bytes order like the numbers they are, so the suffixes that begin at whole ids come out in order.
    big_endian = stream.astype(stream.dtype.newbyteorder(">")).view(np.uint8).reshape(-1, stream.itemsize)
    text = np.ascontiguousarray(big_endian[:, stream.itemsize - width :]).reshape(-1)
    del big_endian
    found = divsufsort(text)
    del text
    num = 0
    for start in range(0, len(found), _CHUNK):  # in place: a second array of this size would be the peak of a build
        part = found[start : start + _CHUNK]
        kept = part[part % width == 0] // width
        found[num : num + len(kept)] = kept
        num += len(kept)
    return found[:num].view(np.uint32)


def _sort_short(stream: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """By prefix doubling (Manber and Myers, "Suffix arrays", 1993): ranks by n tokens give those by 2 n."""
    rank = np.unique(stream, return_inverse=True)[1] + 1
    length = 1
    while len(stream) and rank.max() < len(stream):
        following = np.zeros_like(rank)
        following[:-length] = rank[length:]
        rank = np.unique(rank * (len(stream) + 1) + following, return_inverse=True)[1] + 1
        length *= 2
    return np.argsort(rank).astype(np.uint32)


def _bytes_sorted(token_bytes: int) -> int:
    """Ids of four bytes are below 2**24: their first byte would only cost memory."""
    return min(token_bytes, 3)
