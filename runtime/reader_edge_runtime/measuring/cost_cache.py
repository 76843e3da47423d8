"""Measured costs, kept in the user's cache directory for the machine and package they were measured with."""

import json
import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np

from reader_edge_runtime.machine.cache_folder import cache_folder, keep_own
from reader_edge_runtime.measuring.machine_key import machine_key
from reader_edge_runtime.measuring.pass_cost import MAX_WIDTH, PassCost, measure_pass_cost
from reader_edge_runtime.target import Target

FORMAT_VERSION = 7

MAX_FILE_BYTES = 1 << 20
_MAX_PAST = 1 << 28  # the longest context that a manifest may have
_MAX_SECONDS = 3600.0
_MOST_MEASURED = 3  # times, where the first ones are in doubt

_LOG = logging.getLogger("reader_edge.measuring")


def load_or_measure(
    target: Target,
    threads: int,
    batch_size: int,
    is_redone: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> PassCost:
    """The cost of a model's passes on this machine: from the cache, else measured (a few seconds) and kept.

    The log (`reader_edge.measuring`) has a line before, which says about how long it takes, and one after it.

    A cost that is in doubt is measured again at the next starts, and the lesser times are kept. A cache that cannot be
    written is no error: the next start measures again.
    """
    path = cost_path(target, threads, batch_size)
    kept = None if is_redone else _read(path, batch_size)
    if kept is None or (kept.is_in_doubt and kept.num_measured < _MOST_MEASURED):
        if kept is not None:
            level = logging.WARNING if on_progress is None else logging.INFO
            _LOG.log(level, "Passes are measured again, since other work ran beside the last measuring.")
        start = time.monotonic()
        measured = measure_pass_cost(target, batch_size, on_progress=on_progress)
        _LOG.info("Measured passes in %.1f s; kept in '%s'.", time.monotonic() - start, path)
        cost = measured if kept is None else kept.merged(measured)
        fields = asdict(cost) | {"seconds": cost.seconds.tolist()}
        with suppress(OSError):
            keep_own(path, json.dumps(fields).encode())
        return cost
    return kept


def kept_cost(target: Target, threads: int, batch_size: int) -> PassCost | None:
    """What was measured before; None where nothing was."""
    return _read(cost_path(target, threads, batch_size), batch_size)


def forget_cost(target: Target, threads: int, batch_size: int) -> None:
    """Have a cost measured again at the next start."""
    with suppress(OSError):
        cost_path(target, threads, batch_size).unlink()


def cost_path(target: Target, threads: int, batch_size: int) -> Path:
    """Where the cost of this machine, package, provider, thread count and batch size is kept."""
    key = machine_key(target, threads, FORMAT_VERSION)
    return cache_folder() / "costs" / f"{key}-batch{batch_size}.json"


def _read(path: Path, batch_size: int) -> PassCost | None:
    """The cost in a file; None where it is absent or not what this version writes."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:  # a pipe or a device may have no end
            return None
        return parse_cost(json.loads(path.read_bytes()), batch_size)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def parse_cost(fields: dict[str, object], batch_size: int) -> PassCost:
    """A cost from the fields of a JSON object. Raises ValueError, TypeError, KeyError or OverflowError for others."""
    pasts, widths = _ascending(fields["pasts"], _MAX_PAST), _ascending(fields["widths"], MAX_WIDTH)
    seconds = np.array(fields["seconds"], np.float64)
    if seconds.shape != (len(pasts), len(widths)) or not ((seconds > 0) & (seconds < _MAX_SECONDS)).all():
        raise ValueError("seconds do not fit the grid")
    row_s = float(str(fields["row_s"]))
    if not 0 <= row_s < _MAX_SECONDS:
        raise ValueError("row_s is no time")
    padding_share = float(str(fields.get("padding_share", 1.0)))
    if not 0 <= padding_share <= 1:
        raise ValueError("padding_share is no share")
    text_s = np.array(fields.get("text_s", (0.0, 0.0)), np.float64)
    if text_s.shape != (2,) or not ((text_s >= 0) & (text_s < _MAX_SECONDS)).all():
        raise ValueError("text_s is no pair of times")
    spread, num_measured = float(str(fields.get("spread", 0.0))), fields.get("num_measured", 1)
    if not 0 <= spread < math.inf or type(num_measured) is not int or num_measured < 1:
        raise ValueError("spread is no share, or nothing was measured")
    per_text = float(text_s[0]), float(text_s[1])
    return PassCost(batch_size, pasts, widths, seconds, row_s, padding_share, per_text, spread, num_measured)


def _ascending(values: object, most: int) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(value) is int and 0 < value <= most for value in values):
        raise ValueError("no grid")
    if not values or sorted(set(values)) != values:
        raise ValueError("grid points do not ascend")
    return tuple(values)
