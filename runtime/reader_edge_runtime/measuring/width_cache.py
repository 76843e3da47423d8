"""Keeps the width probe's verdict (have passes of every width the same bits here?) in the user's cache directory.

At 7B the probe's passes take twelve seconds, at every start. `reader-edge verify` proves whatever is kept here.
"""

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from reader_edge_runtime.machine.cache_folder import cache_folder, read_kept, why_untrusted, write_private
from reader_edge_runtime.measuring.cost_cache import machine_key
from reader_edge_runtime.measuring.width_probe import WidthReport, settle_width
from reader_edge_runtime.target import Target

FORMAT_VERSION = 2

_MAX_FILE_BYTES = 1 << 12
_MAX_ROWS = 1 << 16
_Rows = Annotated[int, Meta(ge=0, le=_MAX_ROWS)]
_LARGE = 1 << 30  # bytes of a model whose dozen passes take seconds

_LOG = logging.getLogger("reader_edge.measuring")


def load_or_settle(
    target: Target, threads: int, on_progress: Callable[[int, int], None] | None = None
) -> tuple[Target, WidthReport]:
    """The target to use and its report, as `settle_width` has them: from the cache, else probed and kept.

    on_progress: gets 0 and 1 before it probes; without it, a line of the log warns of a long wait.
    A cache that cannot be written is no error: the next start probes again.
    """
    kept = kept_verdict(target, threads)
    if kept is not None:
        return kept
    path = verdict_path(target, threads)
    if on_progress is not None:
        on_progress(0, 1)
    is_long = target.manifest.num_bytes > _LARGE
    level = logging.WARNING if on_progress is None and is_long else logging.INFO
    _LOG.log(level, "Comparing the bits of narrow and wide passes on this machine, for later starts too.")
    settled, report = settle_width(target)
    with suppress(OSError):
        write_private(path, json.dumps(asdict(report) | {"min_rows": settled.min_rows}).encode())
    return settled, report


def kept_verdict(target: Target, threads: int) -> tuple[Target, WidthReport] | None:
    """The target to use and its report, where a start before this one has probed; else None."""
    path = verdict_path(target, threads)
    is_own = not why_untrusted(path, cache_folder())  # a false one would change answers
    kept = read_kept(path, _Verdict, _MAX_FILE_BYTES) if is_own else None
    if kept is None or kept.num_equal > kept.num_rows:
        return None
    report = WidthReport(kept.num_rows, kept.num_equal, kept.max_difference, kept.max_rows)
    return (target if kept.min_rows == target.min_rows else target.with_min_rows(kept.min_rows)), report


def verdict_path(target: Target, threads: int) -> Path:
    """Where the verdict on this machine, package, provider and thread count is kept."""
    return cache_folder() / "widths" / f"{machine_key(target, threads, FORMAT_VERSION)}.json"


@dataclass(frozen=True, slots=True)
class _Verdict:
    """A report, and the rows that passes have at least."""

    num_rows: _Rows
    num_equal: _Rows
    max_difference: Annotated[float, Meta(ge=0)]
    max_rows: Annotated[int, Meta(ge=1, le=_MAX_ROWS)] | None
    min_rows: Literal[1, 2]
