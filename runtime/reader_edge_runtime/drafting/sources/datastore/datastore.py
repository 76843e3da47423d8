"""Datastore: a corpus that drafts are looked up in, one read-only file in memory-mapped form."""

import hashlib
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.drafting.sources.datastore.header import (
    HEADER_BYTES,
    MAGIC,
    MAX_FILES,
    DatastoreFacts,
    DatastoreHeader,
    parse_facts,
    parse_header,
)
from reader_edge_runtime.errors import DatastoreError
from reader_edge_runtime.machine.process_memory import free_bytes

_CHUNK_BYTES = 1 << 24
_KEPT_SHARE = 0.5  # of free memory that pages of datastores may fill; a model wants the rest
_RANDOM: int | None = getattr(mmap, "MADV_RANDOM", None)  # Windows has none


class Datastore:
    """An opened datastore file. Its header is checked, its body is not: look-ups are safe whatever that holds."""

    def __init__(self, path: Path, header: DatastoreHeader, mapped: mmap.mmap) -> None:
        self.path = path
        self.header = header
        self.words: npt.NDArray[np.uint32] = np.frombuffer(mapped, np.uint32)
        self._mapped = mapped

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], tokenizer_fingerprint: str | None = None, vocab_size: int | None = None
    ) -> "Datastore":
        """Map a file. Raises DatastoreError.

        tokenizer_fingerprint, vocab_size: those of the model that the file must fit; None accepts any.
        Replace an open file only by renaming, as a build does: reading a mapped page that was cut off ends the process.
        """
        path = Path(path)
        if not path.is_file():
            raise DatastoreError(f"No datastore at '{path}': give a file written by 'reader-edge datastore build'.")
        try:
            with path.open("rb") as file:
                header = parse_header(file.read(HEADER_BYTES), os.fstat(file.fileno()).st_size, path)
                mapped = mmap.mmap(file.fileno(), header.file_bytes, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise DatastoreError(f"'{path}' cannot be read as a datastore: {reason}.") from None
        if tokenizer_fingerprint is not None and header.tokenizer_fingerprint != tokenizer_fingerprint:
            raise DatastoreError(
                f"'{path}' was built with another tokenizer: build it again with --tokenizer and this model."
            )
        if vocab_size is not None and header.vocab_size > vocab_size:
            raise DatastoreError(
                f"'{path}' has token ids up to {header.vocab_size - 1}, the model up to {vocab_size - 1}: "
                "build it again with --tokenizer and this model."
            )
        return cls(path, header, mapped)

    def read_single_pages(self) -> None:
        """Have the system read what a look-up touches, and no pages beside it, where it takes such advice."""
        if _RANDOM is not None:
            self._mapped.madvise(_RANDOM)

    @property
    def facts(self) -> DatastoreFacts:
        """Where the text came from. Raises DatastoreError for malformed facts."""
        return parse_facts(self._bytes[HEADER_BYTES : HEADER_BYTES + self.header.facts_bytes].tobytes(), self.path)

    @property
    def tokens(self) -> npt.NDArray[Any]:
        """The documents' token ids, uint16 or uint32; each document is followed by the type's highest value."""
        token_type = np.uint16 if self.header.token_bytes == 2 else np.uint32
        return np.frombuffer(self._bytes, token_type, self.header.num_positions, self.header.tokens_at)

    @property
    def suffixes(self) -> npt.NDArray[np.uint32]:
        """Positions of all tokens, uint32 (T,), sorted by the text that begins there."""
        start = self.header.suffixes_at // 4
        return self.words[start : start + self.header.num_tokens]

    def check_body(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Compare the body with its checksum. Raises DatastoreError.

        on_progress: called with the bytes checked so far and the bytes in all.
        """
        digest = hashlib.sha256()
        body = self._bytes[HEADER_BYTES:].data
        for start in range(0, len(body), _CHUNK_BYTES):
            digest.update(body[start : start + _CHUNK_BYTES])
            if on_progress is not None:
                on_progress(min(start + _CHUNK_BYTES, len(body)), len(body))
        if digest.hexdigest() != self.header.body_sha256:
            raise DatastoreError(f"'{self.path}' differs from its checksum: copy or build it again.")

    @property
    def _bytes(self) -> npt.NDArray[np.uint8]:
        return self.words.view(np.uint8)


def is_datastore(path: Path) -> bool:
    """Whether a file begins like a datastore. Raises OSError."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def open_datastores(
    paths: Sequence[str | os.PathLike[str]], tokenizer_fingerprint: str, vocab_size: int
) -> list[Datastore]:
    """Map the files that one model drafts from. Raises DatastoreError.

    Files that fit into memory are read ahead, and are there after some look-ups; others would lose pages before they
    are used.
    """
    datastores = [Datastore.open(path, tokenizer_fingerprint, vocab_size) for path in paths]
    check_together(datastores)
    free = free_bytes(has_swap=False)
    if free is not None and sum(each.header.file_bytes for each in datastores) > _KEPT_SHARE * free:
        for each in datastores:
            each.read_single_pages()
    return datastores


def check_together(datastores: Sequence[Datastore]) -> None:
    """Raise DatastoreError unless these can be used together."""
    if len(datastores) > MAX_FILES:
        raise DatastoreError(
            f"{len(datastores)} datastores are given, {MAX_FILES} can be used at once: "
            "merge some with 'reader-edge datastore merge'."
        )
    for datastore in datastores[1:]:
        if datastore.header.tokenizer_fingerprint != datastores[0].header.tokenizer_fingerprint:
            raise DatastoreError(
                f"'{datastores[0].path}' and '{datastore.path}' were built with different tokenizers: "
                "build one of them again."
            )
