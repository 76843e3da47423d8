"""Fields of manifests, which come from outside: read with bounds, and believed one by one."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reader_edge_runtime.errors import ManifestError
from reader_edge_runtime.outside.plain_file import check_plain_file
from reader_edge_runtime.package.manifest import FileEntry

MAX_TEXT = 4096

_MAX_BYTES = 1 << 20
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def read_fields(path: Path, format_name: str) -> dict[str, Any]:
    """The fields of a manifest of this format. Raises ManifestError."""
    check_plain_file(path, ManifestError, "export or copy the package again")
    num_bytes = path.stat().st_size
    if num_bytes > _MAX_BYTES:
        raise ManifestError(f"'{path}' has {num_bytes} bytes, more than a manifest may have: export again.")
    try:
        fields = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"'{path}' is not valid JSON ({error}): export the model again.") from None
    if not isinstance(fields, dict) or fields.get("format") != format_name:
        raise ManifestError(f"'{path}' is not a {format_name} manifest: export the model again.")
    return fields


def read_files(files: dict[str, dict[str, Any]], path: Path) -> dict[str, FileEntry]:
    """What the manifest at `path` says of files. Raises ManifestError."""
    for name, entry in files.items():
        if not _FILE_NAME.fullmatch(name):
            raise ManifestError(f"'{path}' lists {name!r:.80}, which is not a plain file name in its folder.")
        num_bytes, sha256 = entry.get("num_bytes"), entry.get("sha256")
        require(size_within((1 << 63) - 1, least=0)(num_bytes), path, f"size of {name}", num_bytes)
        require(isinstance(sha256, str) and _SHA256.fullmatch(sha256), path, f"checksum of {name}", sha256)
    return {name: FileEntry(each["num_bytes"], each["sha256"]) for name, each in files.items()}


def require(is_usable: object, path: Path, name: str, value: object) -> None:
    """Raise ManifestError, which names the field and its value, where it is unusable."""
    if not is_usable:
        raise ManifestError(f"'{path}' has an unusable {name} ({value!r:.80}): export the model again.")


def size_within(most: int, least: int = 1) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def mapping_of(is_usable: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda values: isinstance(values, dict) and all(is_text(k) and is_usable(v) for k, v in values.items())


def is_text(value: object) -> bool:
    """A short text that can be shown: no escape sequences, line breaks or lone surrogates."""
    return isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable()


def is_figure(value: object) -> bool:
    """A finite number that a float holds."""
    return (isinstance(value, float) and math.isfinite(value)) or (type(value) is int and abs(value) < 1 << 53)
