"""The journal of an export: each finished part is recorded, and the next export resumes where a killed one stopped.

Lines of JSON in the export's folder: a key of all that the result depends on, what calibration found, each rounded
matrix, and notes of other phases' results. A line is written after the bytes that it speaks of. It is believed in
nothing: from the first line on that is not whole, or that the file of weights does not bear out, the work is done
again.
"""

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta

from reader_edge_runtime.package.manifest import WEIGHTS_NAME
from reader_edge_runtime.untrusted.untrusted_json import Sha256
from reader_edge_runtime.untrusted.user_input import read_bounded

WORK_NAME = "work"  # the folder of what no package holds
JOURNAL_NAME = "journal"
MOMENTS_NAME = "moments"
TABLE_NAME = "successors"

_MAX_BYTES = 1 << 26
_CHUNK = 1 << 24


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A rounded matrix in the file of weights. names: of the parameters that it is made of.

    begin, end: its bytes, those included that lie before its tensors and between them. sha256: of all up to `end`.
    """

    names: tuple[str, ...]
    begin: Annotated[int, Meta(ge=0)]
    end: Annotated[int, Meta(ge=0)]
    sha256: Sha256


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line, which has one of these. key: of what the result depends on. note: of another result, name and value."""

    key: str | None = None
    calibration: dict[str, Any] | None = None
    matrix: StoredMatrix | None = None
    note: tuple[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _WrittenMatrix:
    """A matrix that was found. before, after: checksums of the file of weights up to its begin and end, to go on from.

    line_end: where its line ends in the journal.
    """

    matrix: StoredMatrix
    before: "hashlib._Hash"
    after: "hashlib._Hash"
    line_end: int


class Journal:
    """Of the export into a folder that no other process writes into.

    calibration: what was noted of it, None if nothing. results: by name, what follows from the calibration, or has
    a name that says what it is of. num_matrices: how many of the source's were found rounded.
    """

    def __init__(self, folder: Path, key: str) -> None:
        """Go on with the folder's journal as far as it is of the key and true, or begin one."""
        path = folder / WORK_NAME / JOURNAL_NAME
        path.parent.mkdir(exist_ok=True)
        self.calibration: object = None
        self.results: dict[str, object] = {}
        self._left: deque[_WrittenMatrix] = deque()
        self._end = 0  # of the lines that count, but for those of matrices that are left
        lines, end = _lines(path), 0
        if lines and lines[0].entry == Entry(key):
            end = self._read(lines, folder / WEIGHTS_NAME)
        self.num_matrices = sum(len(left.matrix.names) for left in self._left)
        self._file = path.open("ab")
        self._file.truncate(end)
        if not self._end:
            self._write({"key": key})

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    @property
    def has_matrices(self) -> bool:
        """Whether matrices were found that are not taken yet."""
        return bool(self._left)

    def take(self, names: Sequence[str], begin: int, end: int, before: "hashlib._Hash") -> "hashlib._Hash | None":
        """The checksum of the file of weights up to `end`, where the next matrix that was found is this one.

        before: the checksum up to `begin`. None where it is another, and then those that follow are forgotten.
        """
        if not self._left:
            return None
        left = self._left[0]
        is_it = left.matrix == StoredMatrix(tuple(names), begin, end, left.matrix.sha256)
        if is_it and left.before.digest() == before.digest():
            self._end = self._left.popleft().line_end
            return left.after
        self._forget()
        return None

    def add(self, matrix: StoredMatrix) -> None:
        """Note a matrix whose bytes were written."""
        self._write({"matrix": asdict(matrix)})

    def add_calibration(self, found: Mapping[str, object]) -> None:
        """Note what a calibration found, as JSON has it; what follows from another is forgotten."""
        self._forget()
        self.results.clear()
        self._write({"calibration": found})

    def record(self, name: str, found: object) -> None:
        """Note what else was found, as JSON has it."""
        self.results[name] = found
        self._write({"note": [name, found]})

    def _forget(self) -> None:
        if self._left:
            self._left.clear()
            self._file.truncate(self._end)

    def _write(self, value: object) -> None:
        self._file.write(json.dumps(value).encode() + b"\n")
        self._file.flush()
        self._end = self._file.tell()

    def _read(self, lines: Sequence["_Line"], weights: Path) -> int:
        """Take over what lines say. Returns where the last of them ends that counts."""
        end = self._end = lines[0].end
        matrices: list[tuple[StoredMatrix, int]] = []
        for line in lines[1:]:
            match line.entry:
                case Entry(calibration=dict(found)) if not matrices:
                    self.calibration = found
                    self.results.clear()
                case Entry(note=(name, found)):
                    self.results[name] = found
                case Entry(matrix=StoredMatrix() as matrix) if matrix.begin <= matrix.end:
                    matrices.append((matrix, line.end))
                case _:
                    break
            end = line.end
            if not matrices:
                self._end = end
        if matrices and weights.is_file():
            with weights.open("r+b") as file:
                self._left.extend(_borne_out(file, matrices))
                file.truncate(self._left[-1].matrix.end if self._left else 0)
        if len(self._left) == len(matrices):
            return end
        return self._left[-1].line_end if self._left else self._end


@dataclass(frozen=True, slots=True)
class _Line:
    """end: in the file, of its last byte."""

    entry: Entry
    end: int


def _lines(path: Path) -> list[_Line]:
    """The lines of a journal up to the first that is none; none where it is not there, or larger than any."""
    try:
        data = read_bounded(path, _MAX_BYTES)
    except OSError:
        return []
    lines, end = [], 0
    for line in data.split(b"\n")[:-1]:
        end += len(line) + 1
        try:
            lines.append(_Line(msgspec.json.decode(line, type=Entry), end))
        except (ValueError, RecursionError):
            break
    return lines


def _borne_out(weights: BinaryIO, matrices: Iterable[tuple[StoredMatrix, int]]) -> Iterator[_WrittenMatrix]:
    """The matrices, each with the end of its line, up to the first that the file of weights does not hold."""
    checksum, position = hashlib.sha256(), 0
    for matrix, line_end in matrices:
        if matrix.begin < position:
            return
        _hash(weights, checksum, matrix.begin - position)
        before = checksum.copy()
        _hash(weights, checksum, matrix.end - matrix.begin)
        if checksum.hexdigest() != matrix.sha256 or weights.tell() != matrix.end:
            return
        position = matrix.end
        yield _WrittenMatrix(matrix, before, checksum.copy(), line_end)


def _hash(file: BinaryIO, checksum: "hashlib._Hash", num_bytes: int) -> None:
    while num_bytes and (data := file.read(min(num_bytes, _CHUNK))):
        checksum.update(data)
        num_bytes -= len(data)


def has_work(folder: Path, key: str) -> bool:
    """Whether the journal in a folder is of the key, and notes anything."""
    lines = _lines(folder / WORK_NAME / JOURNAL_NAME)
    return len(lines) > 1 and lines[0].entry == Entry(key)
