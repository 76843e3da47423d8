"""Reads the texts of corpus files piece by piece, so that no file or document is too large for the memory.

text      A file is a document. Where it holds ASCII record separators (0x1e), each begins a document, whose name
          is the rest of that line and not part of the text.
jsonl     A line is a JSON object; its field "text" (or another) is a document.
parquet   A row is a document: its column "text" (or another).
"""

import codecs
import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from reader_edge_runtime.errors import DatastoreError, InstallationError
from reader_edge_runtime.untrusted.user_input import BYTE_ORDER_MARK

_SEPARATOR = "\x1e"
_READ_BYTES = 1 << 18
_PIECE = 1 << 16
_MAX_LINE_BYTES = 1 << 25
_PARQUET_ROWS = 256


@dataclass(frozen=True, slots=True)
class CorpusPiece:
    """A part of a document, in order. read_share: the share of its file that has been read, 0 to 1."""

    text: str
    ends_document: bool
    read_share: float


def read_pieces(path: Path, file_format: str | None, field: str) -> Iterator[CorpusPiece]:
    """The texts of a file. None: the format that its name tells. Raises DatastoreError, InstallationError."""
    chosen = file_format or {".jsonl": "jsonl", ".parquet": "parquet"}.get(path.suffix, "text")
    if chosen == "jsonl":
        return _read_jsonl(path, field)
    return _read_parquet(path, field) if chosen == "parquet" else _read_text(path)


def _read_text(path: Path) -> Iterator[CorpusPiece]:
    held, is_in_name = "", False
    for chunk, share in _decoded(path):
        for number, part in enumerate(chunk.split(_SEPARATOR)):
            if number:
                yield from _split(held, share)
                held, is_in_name = "", True
            text = part
            if is_in_name:
                _, line_end, text = part.partition("\n")
                is_in_name = not line_end
            held += text
        held = yield from _pieces_of(held, share)
    yield from _split(held, 1.0)


def _decoded(path: Path) -> Iterator[tuple[str, float]]:
    num_bytes = max(path.stat().st_size, 1)
    num_read = 0
    decoder = codecs.getincrementaldecoder("utf-8")()
    mark = BYTE_ORDER_MARK.decode()
    with path.open("rb") as file:
        while True:
            data = file.read(_READ_BYTES)
            start = num_read - len(decoder.getstate()[0])
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise DatastoreError(
                    f"'{path}' is not UTF-8 text (byte {start + error.start}): convert it, or name its --format."
                ) from None
            if not data:
                return
            yield text if num_read else text.lstrip(mark), min((num_read + len(data)) / num_bytes, 1.0)
            num_read += len(data)


def _read_jsonl(path: Path, field: str) -> Iterator[CorpusPiece]:
    num_bytes = max(path.stat().st_size, 1)
    with path.open("rb") as file:
        for number, line in enumerate(iter(partial(file.readline, _MAX_LINE_BYTES), b""), start=1):
            if len(line) == _MAX_LINE_BYTES:
                raise DatastoreError(f"Line {number} of '{path}' has more than {_MAX_LINE_BYTES} bytes: split it.")
            line = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
            if not line.strip():
                continue
            try:
                text = json.loads(line)[field]
            except (ValueError, RecursionError, TypeError, KeyError):
                text = None
            if not isinstance(text, str):
                raise DatastoreError(
                    f"Line {number} of '{path}' is no JSON object with a text \"{field}\": see --field."
                )
            yield from _split(text, min(file.tell() / num_bytes, 1.0))


def _read_parquet(path: Path, field: str) -> Iterator[CorpusPiece]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise InstallationError("Reading Parquet needs pyarrow: install it with pip install pyarrow.") from None
    try:
        with parquet.ParquetFile(path, buffer_size=_READ_BYTES) as file:
            num_rows = max(file.metadata.num_rows, 1)
            if field not in file.schema_arrow.names:
                raise DatastoreError(f"'{path}' has no column \"{field}\": see --field.")
            num_read = 0
            for batch in file.iter_batches(_PARQUET_ROWS, columns=[field]):
                for text in batch.column(0).to_pylist():
                    num_read += 1
                    if not isinstance(text, str | None):
                        raise DatastoreError(f"Column \"{field}\" of '{path}' is not text: see --field.")
                    if text is not None:
                        yield from _split(text, min(num_read / num_rows, 1.0))
    except (OSError, ValueError) as error:  # pyarrow's own errors are among these
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DatastoreError(f"'{path}' is not a readable Parquet file: {reason}") from None


def _split(document: str, share: float) -> Iterator[CorpusPiece]:
    """A document, or its end, in pieces."""
    end = yield from _pieces_of(document, share)
    yield CorpusPiece(end, True, share)


def _pieces_of(text: str, share: float) -> Generator[CorpusPiece, None, str]:
    """The pieces that a long text begins with; returns what is left."""
    while len(text) > 2 * _PIECE:
        cut = _cut(text)
        yield CorpusPiece(text[:cut], False, share)
        text = text[cut:]
    return text


def _cut(text: str) -> int:
    """Where a piece may end: behind a line, else before a space, else anywhere."""
    line_end = text.rfind("\n", _PIECE // 2, _PIECE)
    if line_end >= 0:
        return line_end + 1
    space = text.rfind(" ", _PIECE // 2, _PIECE)
    return space if space >= 0 else _PIECE
