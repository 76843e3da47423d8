"""Size and SHA-256 of the files of a package."""

import hashlib
from pathlib import Path

from reader_edge_runtime.package.manifest import FileEntry


def sha256_of(path: Path) -> str:
    """SHA-256 of a file as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_entry(path: Path) -> FileEntry:
    """FileEntry of a file as it is now."""
    return FileEntry(path.stat().st_size, sha256_of(path))
