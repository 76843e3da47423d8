"""GGUF files in parts, NAME-00001-of-00003.gguf and so on, as `llama-gguf-split` and the package gguf write them.

Each part has a header and tensors of its own; what the model is stands in the first. Every part gives its number from
0 on (`split.no`), how many there are (`split.count`) and how many tensors all have together (`split.tensors.count`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from reader_edge_export.sources.find import part_names
from reader_edge_export.sources.gguf.tensor_kinds import Tensor
from reader_edge_runtime.errors import GgufError
from reader_edge_runtime.untrusted.gguf_header import MAX_TENSORS, Value
from reader_edge_runtime.untrusted.plain_file import check_plain_file

_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"
_MAX_PARTS = 1 << 12
_FETCH = "fetch all parts of one model again"
_Part = tuple[Mapping[str, Value], Mapping[str, Tensor]]  # metadata, and tensors by name


def other_parts(path: Path, metadata: Mapping[str, Value]) -> list[Path]:
    """The files of a model besides that of its first part, [] of one in a single file.

    They lie in the same folder under the first one's name with other numbers. Raises GgufError where one is missing,
    and for any part but the first.
    """
    number, count = (metadata.get(key, 0) for key in (_NUMBER, _COUNT))
    if count in (0, 1) and number == 0:  # where parts are joined, the count becomes 0
        return []
    if not (type(number) is int and type(count) is int and 0 <= number < count <= _MAX_PARTS):
        raise GgufError(f"'{path}' is part {number!r:.20} of {count!r:.20}, counted from 0, which cannot be: {_FETCH}.")
    names = part_names(path.name)
    if len(names) != count:
        raise GgufError(
            f"'{path}' is one of {count} parts, but is not called NAME-{number + 1:05d}-of-{count:05d}.gguf, by which "
            "the others are found: give all of them the names that they had."
        )
    if number or path.name != names[0]:
        raise GgufError(f"'{path}' is part {number + 1} of {count}: give the first one, '{names[0]}', in its place.")
    others = [path.with_name(name) for name in names[1:]]
    for other in others:
        check_plain_file(other, GgufError, f"'{path.name}' is the first of {count} parts, so fetch all of them")
    return others


def joined_tensors(paths: Sequence[Path], parts: Sequence[_Part]) -> dict[str, Tensor]:
    """The tensors of all parts, in their order. Raises GgufError for parts that do not belong together."""
    first = parts[0][0]
    tensors: dict[str, Tensor] = {}
    for number, (path, (metadata, own)) in enumerate(zip(paths, parts, strict=True)):
        for key in metadata.keys() & (first.keys() | {_COUNT, _TENSORS}):
            expected = number if key == _NUMBER else first.get(key)
            if metadata[key] != expected:
                raise _foreign(path, number, paths, f"it gives {key!r:.80} as {metadata[key]!r:.80}")
        if missing := {_NUMBER, _COUNT} - metadata.keys():
            raise _foreign(path, number, paths, f"it gives no {min(missing)}")
        if twice := tensors.keys() & own.keys():
            raise _foreign(path, number, paths, f"it holds {min(twice)!r:.80}, which an earlier one has")
        tensors |= own
        if len(tensors) > MAX_TENSORS:
            raise _foreign(path, number, paths, f"they hold more than {MAX_TENSORS} tensors")
    num_tensors = first.get(_TENSORS, len(tensors))
    if num_tensors != len(tensors):
        raise GgufError(
            f"'{paths[0]}' and its other parts hold {len(tensors)} tensors together, where {num_tensors!r:.20} are to "
            f"be: {_FETCH}."
        )
    return tensors


def _foreign(path: Path, number: int, paths: Sequence[Path], reason: str) -> GgufError:
    return GgufError(f"'{path}' is not part {number + 1} of '{paths[0].name}' ({reason}): {_FETCH}.")
