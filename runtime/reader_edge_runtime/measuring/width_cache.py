"""What the width probe found, kept in the user's cache directory: bits depend on nothing but the key of a verdict.

At 7B the probe's passes take twelve seconds, at every start. `reader-edge verify` proves whatever is kept here.
"""

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from reader_edge_runtime.machine.cache_folder import cache_folder, code_fault, keep_own
from reader_edge_runtime.measuring.machine_key import machine_key
from reader_edge_runtime.measuring.width_probe import WidthReport, settle_width
from reader_edge_runtime.target import Target

FORMAT_VERSION = 2

_MAX_FILE_BYTES = 1 << 12
_MAX_ROWS = 1 << 16
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
        keep_own(path, json.dumps(asdict(report) | {"min_rows": settled.min_rows}).encode())
    return settled, report


def kept_verdict(target: Target, threads: int) -> tuple[Target, WidthReport] | None:
    """The target to use and its report, where a start before this one has probed; else None."""
    path = verdict_path(target, threads)
    kept = None if code_fault(path, cache_folder()) else _read(path)  # a false one would change answers
    if kept is None:
        return None
    report, min_rows = kept
    return (target if min_rows == target.min_rows else target.with_min_rows(min_rows)), report


def verdict_path(target: Target, threads: int) -> Path:
    """Where the verdict on this machine, package, provider and thread count is kept."""
    return cache_folder() / "widths" / f"{machine_key(target, threads, FORMAT_VERSION)}.json"


def _read(path: Path) -> tuple[WidthReport, int] | None:
    """A report and the rows that passes have at least; None where a file is absent or not what this version writes."""
    try:
        if not path.is_file() or path.stat().st_size > _MAX_FILE_BYTES:
            return None
        return _parse(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _parse(fields: dict[str, object]) -> tuple[WidthReport, int]:
    num_rows, num_equal, min_rows = (fields[name] for name in ("num_rows", "num_equal", "min_rows"))
    difference, max_rows = fields["max_difference"], fields["max_rows"]
    if not (type(num_rows) is int and type(num_equal) is int and 0 <= num_equal <= num_rows <= _MAX_ROWS):
        raise ValueError("no numbers of rows")
    if type(min_rows) is not int or min_rows not in (1, 2) or type(difference) is not float or not difference >= 0:
        raise ValueError("no report")
    if max_rows is not None and not (type(max_rows) is int and 0 < max_rows <= _MAX_ROWS):
        raise ValueError("no limit")
    return WidthReport(num_rows, num_equal, difference, max_rows), min_rows
