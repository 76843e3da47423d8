"""Guards a source's files during its export: who may read them, and whether they change meanwhile."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path

from reader_edge_export.options import ExportOptions
from reader_edge_export.sources.source import Source
from reader_edge_export.texts.text_set import TextSet
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.machine.processor import processor_name

_READ_LATE = {".safetensors", ".gguf"}  # all else is read at once, or not at all

State = tuple[int, int]  # size, and time of change (ns)
_PACKAGES = (
    *("reader-edge", "torch", "numpy", "numba", "llvmlite", "transformers", "optimum"),
    *("onnx", "onnx-ir", "onnxscript", "gguf"),
)


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


def export_key(source: Source, options: ExportOptions, calibration: TextSet, others: Iterable[Path] = ()) -> str:
    """SHA-256 (hex). Of a source's files, sizes and times count, since reading all of a large model takes a while.

    others: files that are read besides, of a speculator.
    """
    facts = {
        "files": sorted(file_states([*source.files, *others]).items()),
        "options": [options.precision, options.attention, options.kv_dtype, source.max_context],
        "images": [options.has_images, options.image_precision],
        "adapters": options.takes_adapters,
        "calibration": calibration.fingerprint(),
        "versions": {name: version_of(name) for name in _PACKAGES},
        "code": _code(),
        "processor": processor_name(),  # libraries choose kernels by it, and each has last bits of its own
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


@cache
def version_of(name: str) -> str:
    """Of an installed package; "unknown" where there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


@cache
def _code() -> str:
    """SHA-256 over the exporter itself, which changes between versions where it is worked on."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
