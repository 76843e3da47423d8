"""The files of a source while it is exported: who may read them, and whether they stay what they are."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from reader_edge_runtime.errors import ExportError

_READ_LATE = {".safetensors", ".gguf"}  # all else is read at once, or not at all

State = tuple[int, int]  # size, and time of change (ns)


def file_states(files: Iterable[Path]) -> dict[str, State]:
    """Of files by their paths, links followed."""
    return {str(path.resolve()): _state(path.resolve()) for path in files}


def _state(path: Path) -> State:
    try:
        state = path.stat()
    except OSError:
        return -1, -1  # it is gone
    return state.st_size, state.st_mtime_ns


@contextmanager
def unchanged(files: Iterable[Path]) -> Iterator[None]:
    """While entered, a source is read, a matrix at a time. Raises ExportError where its weights changed meanwhile."""
    before = {path: _state(path) for path in files if path.suffix in _READ_LATE}
    try:
        yield
    except Exception as error:
        _check(before, error)
        raise
    _check(before)


def _check(before: Mapping[Path, State], error: Exception | None = None) -> None:
    for path, state in before.items():
        if _state(path) != state:
            raise ExportError(
                f"'{path}' changed while the model was exported: export it again when nobody writes to it."
            ) from error


@contextmanager
def readable(name: str | Path) -> Iterator[None]:
    """While entered, it is found out what a source is. Raises ExportError where its files cannot be read."""
    try:
        yield
    except OSError as error:
        path = Path(name)
        denied = next((each for each in (path, *_files(path)) if not os.access(each, os.R_OK)), None)
        reason = "Permission denied" if denied is not None else error.strerror or error
        raise ExportError(
            f"'{denied or path}' cannot be read ({reason}): see to who may read it, or copy the model."
        ) from error


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
