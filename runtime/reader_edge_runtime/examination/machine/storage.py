"""What makes a sound installation slow: a cache that cannot be written, memory in small pages."""

import os
from collections.abc import Iterator

from reader_edge_runtime.examination.finding import Finding, Severity
from reader_edge_runtime.examination.surroundings import Surroundings

_HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"


def check_cache(surroundings: Surroundings) -> Iterator[Finding]:
    """Whether what is measured can be kept."""
    folder = surroundings.cache
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        yield Finding("cache", Severity.WELL, "What is measured of this machine can be kept.")
        return
    yield Finding(
        "cache",
        Severity.SLOWER,
        f"The cache folder '{folder}' cannot be written, so every start measures this machine again.",
        "Make it writable, or set XDG_CACHE_HOME to a folder that is.",
    )


def check_huge_pages(surroundings: Surroundings) -> Iterator[Finding]:
    """Whether memory may come in huge pages. Nothing is said where it may, or where the system has none."""
    if "[never]" in (surroundings.text(_HUGE_PAGES) or ""):
        yield Finding(
            "huge pages",
            Severity.NOTE,
            "Transparent huge pages are off, which makes large weights a little slower to read.",
            "As root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
