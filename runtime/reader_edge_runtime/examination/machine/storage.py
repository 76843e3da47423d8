"""What makes a sound installation slow: a cache that cannot be written, memory in small pages."""

import os
import tempfile
from collections.abc import Iterator

from reader_edge_runtime.examination.finding import Finding, Severity
from reader_edge_runtime.examination.surroundings import Surroundings

_HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"


def check_cache(surroundings: Surroundings) -> Iterator[Finding]:
    """Whether what is measured can be kept."""
    folder = surroundings.cache
    if folder is None:
        found = "This user has no home folder, so there is no place for models, nor for what is measured."
        yield Finding("cache", Severity.BROKEN, found, "Set XDG_CACHE_HOME to a folder that can be written.")
        return
    existing = next((path for path in (folder, *folder.parents) if os.path.exists(path)), folder.root)
    try:
        tempfile.TemporaryFile(dir=existing).close()  # rights alone do not tell: a system may be read-only
    except OSError as error:
        found = f"The cache folder '{folder}' cannot be written ({error.strerror}): every start measures all again."
        remedy = "Make it writable, or set XDG_CACHE_HOME to a folder that is."
        yield Finding("cache", Severity.SLOWER, found, remedy)
    else:
        yield Finding("cache", Severity.WELL, "What is measured of this machine can be kept.")


def check_huge_pages(surroundings: Surroundings) -> Iterator[Finding]:
    """Whether memory may come in huge pages. Nothing is said where it may, or where the system has none."""
    if "[never]" in (surroundings.text(_HUGE_PAGES) or ""):
        yield Finding(
            "huge pages",
            Severity.NOTE,
            "Transparent huge pages are off, which makes large weights a little slower to read.",
            "As root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
