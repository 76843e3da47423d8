"""Measured costs, kept in the user's cache directory for the machine and package they were measured with."""

import hashlib
import json
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

from reader_edge_runtime.execution.provider import INSTALLED_WHEEL, num_usable_cores
from reader_edge_runtime.execution.target_model import TargetModel
from reader_edge_runtime.execution.verify_cost import VerifyCost, measure_verify_cost

FORMAT_VERSION = 1
BATCH_SIZES = (1, 4)

_MAX_FILE_BYTES = 1 << 20
_MAX_POINTS = 1024


def load_or_measure(
    target: TargetModel,
    threads: int,
    max_batch: int,
    is_redone: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[VerifyCost]:
    """The costs of a model on this machine: from the cache, else measured (a few seconds) and kept.

    A cache that cannot be written is no error: the next start measures again.
    """
    path = cost_path(target, threads)
    batch_sizes = [size for size in BATCH_SIZES if size <= max(max_batch, 1)]
    costs = [] if is_redone else _read(path)
    known = {cost.batch_size for cost in costs}
    missing = [size for size in batch_sizes if size not in known]
    if missing:
        costs += [measure_verify_cost(target, size, on_progress=on_progress) for size in missing]
        _write(path, costs)
    return costs


def cost_path(target: TargetModel, threads: int) -> Path:
    """Where the costs of this machine, package, provider and thread count are kept."""
    files = {name: entry.sha256 for name, entry in sorted(target.manifest.files.items())}
    facts = [
        FORMAT_VERSION,
        _processor(),
        num_usable_cores(),
        threads,
        INSTALLED_WHEEL,
        target.provider,
        files,
    ]
    fingerprint = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    return user_cache_path("reader-edge") / "costs" / f"{fingerprint}.json"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else f"{platform.machine()} {platform.processor()}"


def _read(path: Path) -> list[VerifyCost]:
    """The costs in a file; none where it is absent or not what this version writes."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            return []
        return [_parse(entry) for entry in json.loads(path.read_bytes())["costs"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []


def _parse(entry: dict[str, object]) -> VerifyCost:
    pasts, widths = _ascending(entry["pasts"]), _ascending(entry["widths"])
    seconds = np.array(entry["seconds"], np.float64)
    batch_size = entry["batch_size"]
    if seconds.shape != (len(pasts), len(widths)) or not (seconds > 0).all() or not np.isfinite(seconds).all():
        raise ValueError("seconds do not fit the grid")
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError("no batch size")
    return VerifyCost(batch_size, pasts, widths, seconds)


def _ascending(values: object) -> tuple[int, ...]:
    if not isinstance(values, list) or not 0 < len(values) <= _MAX_POINTS:
        raise ValueError("no grid")
    if not all(isinstance(value, int) and value > 0 for value in values) or sorted(set(values)) != values:
        raise ValueError("grid points do not ascend")
    return tuple(values)


def _write(path: Path, costs: Sequence[VerifyCost]) -> None:
    entries = [
        {
            "batch_size": cost.batch_size,
            "pasts": list(cost.pasts),
            "widths": list(cost.widths),
            "seconds": cost.seconds.tolist(),
        }
        for cost in costs
    ]
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_text(json.dumps({"costs": entries}), encoding="utf-8")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
