"""Measured costs, kept in the user's cache directory for the machine and package they were measured with."""

import hashlib
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta

from reader_edge_runtime.machine.cache_folder import cache_folder, read_kept, write_private
from reader_edge_runtime.machine.processor import num_usable_cores, processor_name
from reader_edge_runtime.measuring.pass_cost import MAX_WIDTH, PassCost, measure_pass_cost
from reader_edge_runtime.target import Target


def machine_key(target: Target, threads: int, format_version: int) -> str:
    """24 hexadecimal digits, others for every machine, package, provider, thread count and version of what is kept."""
    checksums = {name: entry.sha256 for name, entry in sorted(target.manifest.model_files.items())}
    passes = [*target.pass_facts, target.provider, target.is_native, target.instructions, target.min_rows, checksums]
    facts = [format_version, processor_name(), num_usable_cores(), threads, *passes]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


FORMAT_VERSION = 8

_MAX_FILE_BYTES = 1 << 20
_MAX_PAST = 1 << 28  # the longest context that a manifest may have
_MAX_SECONDS = 3600.0
_Seconds = Annotated[float, Meta(ge=0, lt=_MAX_SECONDS)]
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
            words = "Passes are measured again (time %d of %d at most), since other work ran beside the last measuring."
            _LOG.log(level, words, kept.num_measured + 1, _MOST_MEASURED)
        start = time.monotonic()
        measured = measure_pass_cost(target, batch_size, on_progress=on_progress)
        _LOG.info("Measured passes in %.1f s; kept in '%s'.", time.monotonic() - start, path)
        cost = measured if kept is None else kept.merged(measured)
        fields = asdict(cost) | {"seconds": cost.seconds.tolist()}
        with suppress(OSError):
            write_private(path, json.dumps(fields).encode())
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
    if (kept := read_kept(path, _KeptCost, _MAX_FILE_BYTES)) is None:
        return None
    shape = len(kept.pasts), len(kept.widths)
    is_grid = all(list(each) == sorted(set(each)) for each in (kept.pasts, kept.widths))
    if not is_grid or len(kept.seconds) != shape[0] or any(len(row) != shape[1] for row in kept.seconds):
        return None
    return PassCost(batch_size, **asdict(kept) | {"seconds": np.array(kept.seconds)})


@dataclass(frozen=True, slots=True)
class _KeptCost:
    """`PassCost` as a file has it. pasts, widths: ascending. seconds: a row for each of the pasts."""

    pasts: Annotated[tuple[Annotated[int, Meta(ge=1, le=_MAX_PAST)], ...], Meta(min_length=1)]
    widths: Annotated[tuple[Annotated[int, Meta(ge=1, le=MAX_WIDTH)], ...], Meta(min_length=1)]
    seconds: tuple[tuple[Annotated[float, Meta(gt=0, lt=_MAX_SECONDS)], ...], ...]
    row_s: _Seconds
    padding_share: Annotated[float, Meta(ge=0, le=1)] = 1.0
    text_s: tuple[_Seconds, _Seconds] = (0.0, 0.0)
    spread: Annotated[float, Meta(ge=0)] = 0.0
    num_measured: Annotated[int, Meta(ge=1)] = 1
