"""What the rounded matrices of an export depend on, as one key: an export resumes those of the same key alone."""

import hashlib
import json
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from reader_edge_export.options import ExportOptions
from reader_edge_export.package.source_files import file_states
from reader_edge_export.sources.source import Source
from reader_edge_export.texts.text_set import TextSet
from reader_edge_runtime.machine.processor import processor_name

_PACKAGES = (
    *("reader-edge", "torch", "numpy", "numba", "llvmlite", "transformers", "optimum"),
    *("onnx", "onnx-ir", "onnxscript", "gguf"),
)


def export_key(source: Source, options: ExportOptions, calibration: TextSet, others: Iterable[Path] = ()) -> str:
    """SHA-256 (hex). Of a source's files, sizes and times count, since reading all of a large model takes a while.

    others: files that are read besides, of a speculator.
    """
    facts = {
        "files": sorted(file_states([*source.files, *others]).items()),
        "options": [options.precision, options.attention, options.kv_dtype, source.max_context],
        "calibration": calibration.fingerprint(),
        "versions": {name: version_of(name) for name in _PACKAGES},
        "code": _code(),
        "processor": processor_name(),  # libraries choose kernels by it, and each has last bits of its own
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def version_of(name: str) -> str:
    """Of an installed package; "unknown" where there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


def _code() -> str:
    """SHA-256 over the exporter itself, which changes between versions where it is worked on."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
