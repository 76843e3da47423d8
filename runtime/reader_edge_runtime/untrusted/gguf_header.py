"""The header of a GGUF file, which is believed in nothing.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. Every count, length
and offset is compared with what the file has left before anything is allocated by it. Which types of weights there are
is given: an export knows those of the library gguf, who reads adapters the few that those have.
"""

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Generic, NoReturn, Protocol, TypeVar

from reader_edge_runtime.errors import GgufError
from reader_edge_runtime.untrusted.plain_file import check_fetched

Scalar = str | int | float | bool
Value = Scalar | list[Scalar]

MAGIC = b"GGUF"
_OLDER = (b"lmgg", b"fmgg", b"tjgg", b"algg")  # ggml, ggmf, ggjt and ggla, as little-endian machines write them
_WEB_PAGE = (b"<!doctype html", b"<html")
OTHER = "give another file of this model, or the model in Hugging Face format"  # no damage, which fetching would mend
_DAMAGED = "fetch it again"
PERHAPS_DAMAGED = f"{_DAMAGED}, or {OTHER}"
_VERSIONS = (2, 3)
_ARRAY, _STRING = 9, 8
_SCALARS = {  # value type -> struct format
    **{0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"},
    **{10: "Q", 11: "q", 12: "d"},
}
MAX_TENSORS = _MAX_VALUES = 1 << 16
_MAX_TEXT_BYTES = 1 << 25
_MAX_NAME_BYTES = 1 << 16
_MAX_ELEMENTS = 1 << 22  # of all arrays: a quarter of a million tokens, their types, scores and merges come to 1.3 M
_MAX_HEADER_BYTES = 1 << 27
_MAX_DIMENSIONS = 4
_USUAL_ALIGNMENT = 32


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Kind = TypeVar("Kind", bound=_Named)
KindSizes = Mapping[int, tuple[Kind, int, int]]  # by the file's numbers of types: values of a block, and its bytes


@dataclass(frozen=True, slots=True)
class GgufTensor(Generic[Kind]):
    """Where a tensor lies. shape: as numpy orders it, rows first. offset, num_bytes: of its data in the file `path`."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    offset: int
    num_bytes: int
    path: Path


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF files do; Ollama keeps them under names without an ending."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def refuse_as_no_gguf(path: Path) -> NoReturn:
    """Raise GgufError for any other file."""
    check_fetched(path, GgufError)
    with path.open("rb") as file:
        head = file.read(16)
    if not head:
        raise GgufError(f"'{path}' is empty: fetch it again.")
    if head.startswith(_OLDER):
        raise GgufError(f"'{path}' has a format that GGUF replaced in August 2023: give a .gguf file of the model.")
    if head.lower().startswith(_WEB_PAGE):
        raise GgufError(f"'{path}' is a web page, perhaps the one that tells of the file: fetch the file itself.")
    raise GgufError(f"'{path}' is no GGUF file: give a .gguf file, a package or a folder in Hugging Face format.")


class GgufHeader(Generic[Kind]):
    """One walk over a file's header. Every error is a GgufError that names the file."""

    def __init__(self, path: Path, file: BinaryIO, kinds: KindSizes[Kind]) -> None:
        self._path = path
        self._file = file
        self._kinds = kinds
        self._num_bytes = os.fstat(file.fileno()).st_size
        self._offset = 0
        self._num_elements = 0

    def read(self) -> tuple[dict[str, Value], dict[str, GgufTensor[Kind]]]:
        """Metadata and tensors, by name."""
        if self._num_bytes < len(MAGIC) or self._take(len(MAGIC)) != MAGIC:
            refuse_as_no_gguf(self._path)
        version = self._number("I")
        if version not in _VERSIONS:
            raise self._other_version(version)
        num_tensors, num_values = self._number("Q"), self._number("Q")
        if num_tensors > MAX_TENSORS or num_values > _MAX_VALUES:
            raise self._error(f"it counts {num_tensors} tensors and {num_values} values, where 65536 are the most")
        metadata: dict[str, Value] = {}
        for _ in range(num_values):
            name = self._new_name(metadata)
            metadata[name] = self._value(name, self._number("I"))
        infos: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(num_tensors):
            name = self._new_name(infos)
            infos[name] = (self._shape(name), self._kind(name), self._number("Q"))
        alignment = metadata.get("general.alignment", _USUAL_ALIGNMENT)
        if type(alignment) is not int or not 8 <= alignment <= 1 << 16 or alignment & (alignment - 1):
            raise self._error(f"its alignment is {alignment!r:.80}, and not a power of two from 8 to 65536")
        start = -(-self._offset // alignment) * alignment
        # Ollama's converter writes tables of no factors for models that need none.
        full = {name: info for name, info in infos.items() if info[0] != (0,)}
        tensors = {name: self._tensor(name, *info, start, alignment) for name, info in full.items()}
        self._check_apart(tensors)
        return metadata, tensors

    def _tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        number: int,
        offset: int,
        start: int,
        alignment: int,
    ) -> GgufTensor[Kind]:
        kind, block_size, type_size = self._kinds[number]
        if shape[-1] % block_size or offset % alignment:
            raise self._error(f"{name!r:.80} has rows of {shape[-1]} values as {kind.name} at offset {offset}")
        num_bytes = math.prod(shape) // block_size * type_size
        if start + offset + num_bytes > self._num_bytes:
            raise self._error(f"{name!r:.80} ends {start + offset + num_bytes - self._num_bytes} bytes behind its end")
        return GgufTensor(name, kind, shape, start + offset, num_bytes, self._path)

    def _check_apart(self, tensors: Mapping[str, GgufTensor[Kind]]) -> None:
        # Else a small file could stand for any amount of weights.
        for before, after in pairwise(sorted(tensors.values(), key=lambda tensor: tensor.offset)):
            if before.offset + before.num_bytes > after.offset:
                raise self._error(f"{before.name!r:.80} and {after.name!r:.80} lie upon each other")

    def _shape(self, name: str) -> tuple[int, ...]:
        num_dimensions = self._number("I")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise self._error(f"{name!r:.80} has {num_dimensions} dimensions")
        shape = tuple(reversed([self._number("Q") for _ in range(num_dimensions)]))
        if shape != (0,) and not all(0 < size < 1 << 40 for size in shape):
            raise self._error(f"{name!r:.80} has the shape {shape}")
        return shape

    def _kind(self, name: str) -> int:
        number = self._number("I")
        if number not in self._kinds:
            reason = f"{name!r:.80} has the type {number}, which this version does not know"
            raise self._error(reason, "give a file with weights of other types")
        return number

    def _value(self, name: str, kind: int) -> Value:
        if kind != _ARRAY:
            return self._scalar(name, kind)
        kind, length = self._number("I"), self._number("Q")
        self._num_elements += length
        if self._num_elements > _MAX_ELEMENTS:
            reason = f"{name!r:.80} is an array of {length} values, and all arrays have at most {_MAX_ELEMENTS}"
            raise self._error(reason)
        if kind == _STRING:
            return [self._text(name) for _ in range(length)]
        code = self._code(name, kind)
        data = self._take(length * struct.calcsize(code))
        return [value for (value,) in struct.iter_unpack(f"<{code}", data)]

    def _scalar(self, name: str, kind: int) -> Scalar:
        if kind == _STRING:
            return self._text(name)
        code = self._code(name, kind)
        value: Scalar = struct.unpack(f"<{code}", self._take(struct.calcsize(code)))[0]
        return value

    def _code(self, name: str, kind: int) -> str:
        if kind not in _SCALARS:
            raise self._error(f"{name!r:.80} has the value type {kind}, which is unknown or an array in an array")
        return _SCALARS[kind]

    def _new_name(self, taken: Mapping[str, object]) -> str:
        name = self._text("a name", _MAX_NAME_BYTES)
        if name in taken:
            raise self._error(f"{name!r:.80} comes twice")
        return name

    def _text(self, name: str, max_bytes: int = _MAX_TEXT_BYTES) -> str:
        length = self._number("Q")
        if length > max_bytes:
            raise self._error(f"{name!r:.80} is a text of {length} bytes, where {max_bytes} are the most")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self._error(f"{name!r:.80} is not UTF-8 text") from None

    def _number(self, code: str) -> int:
        (number,) = struct.unpack(f"<{code}", self._take(struct.calcsize(code)))
        return int(number)

    def _take(self, num_bytes: int) -> bytes:
        self._offset += num_bytes
        if self._offset > self._num_bytes:
            raise self._error("its header does not end in it", _DAMAGED)
        if self._offset > _MAX_HEADER_BYTES:
            raise self._error(f"its header does not end within {_MAX_HEADER_BYTES} bytes")
        return self._file.read(num_bytes)

    def _other_version(self, version: int) -> GgufError:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
            remedy = "give the little-endian one, or make it with `gguf-convert-endian FILE little` of the package gguf"
            return self._error("it was written for big-endian machines", remedy)
        remedy = "give a file that was converted since August 2023" if version < _VERSIONS[0] else "update reader-edge"
        return self._error(f"version {version}, where {_VERSIONS[0]} and {_VERSIONS[1]} can be read", remedy)

    def _error(self, reason: str, remedy: str = PERHAPS_DAMAGED) -> GgufError:
        return GgufError(f"'{self._path}' cannot be read as GGUF ({reason}): {remedy}.")
