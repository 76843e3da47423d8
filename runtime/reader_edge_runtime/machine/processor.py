"""The processor: what Linux tells of it, elsewhere little is known; and how much of it this process may use."""

import os
import platform
import warnings
from contextlib import suppress
from pathlib import Path, PurePosixPath

CPUINFO = Path("/proc/cpuinfo")
_CGROUP = PurePosixPath("sys/fs/cgroup")
_MAX_DEPTH = 64  # of cgroups in each other
_MAX_BYTES = 1 << 20  # of a file of /proc or /sys


def num_threads(wanted: int) -> int:
    """Threads to compute with: so many, but no more than `num_usable_cores`, which 0 takes. Warns of a number cut."""
    usable = num_usable_cores()
    if wanted > usable:
        cores = "core" if usable == 1 else "cores"
        sentence = f"{wanted} threads would wait for each other on the {usable} {cores} that this process may use"
        warnings.warn(f"{sentence}: {usable} will compute.", stacklevel=1)  # once, whatever is loaded with them
    return min(wanted, usable) or usable


def num_usable_cores(root: Path = Path("/")) -> int:
    """Cores whose time this process may take, by affinity and quota; of a quota's last part of a core nothing."""
    allowed, quota = num_allowed_cores(), cpu_quota(root)
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def num_allowed_cores() -> int:
    """Cores this process may run on, by its affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(root: Path = Path("/")) -> float | None:
    """How many cores' time this process may take, by the tightest of its cgroups; None without a limit.

    root: where its /proc and /sys are.
    """
    quotas = [quota for place in _places(root) if (quota := _quota(root / place)) is not None]
    return min(quotas, default=None)


def processor_name(cpuinfo: Path = CPUINFO) -> str:
    """The model's name on x86, the cores' part numbers on ARM."""
    named = {*_values("model name", cpuinfo), *_values("CPU part", cpuinfo)}
    return " ".join(sorted(named)) or f"{platform.machine()} {platform.processor()}"


def processor_flags(cpuinfo: Path = CPUINFO) -> set[str]:
    """What the processor can do, as /proc/cpuinfo calls it; empty where there is no such file."""
    values = _values("flags", cpuinfo) or _values("Features", cpuinfo)  # on x86, on ARM
    return set(values[0].split()) if values else set()


def has_saturating_sums(cpuinfo: Path = CPUINFO) -> bool:
    """Whether ONNX Runtime's usual kernels add int8 products in 16 bits here, where two may not fit.

    That is so on x86 with AVX2 and without VNNI. Elsewhere than on Linux it is taken not to be so.
    """
    flags = processor_flags(cpuinfo)
    return "avx2" in flags and not flags & {"avx_vnni", "avx512_vnni"}


def _values(name: str, cpuinfo: Path) -> list[str]:
    """The value that each core has of a field of /proc/cpuinfo; [] where there is no such file."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(name)]


def _places(root: Path) -> list[PurePosixPath]:
    """The cgroup of this process and those above it, of both versions; a container sees its own as the root."""
    places = {_CGROUP, _CGROUP / "cpu"}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        base = _CGROUP / "cpu" if "cpu" in controllers.split(",") else _CGROUP
        own = PurePosixPath(path.lstrip("/"))
        is_plain = ".." not in own.parts and len(own.parts) <= _MAX_DEPTH
        if (not controllers or "cpu" in controllers.split(",")) and is_plain:
            places.update(base / part for part in (own, *own.parents))
    return sorted(places)


def _quota(place: Path) -> float | None:
    second = _text(place / "cpu.max").split()
    first = [_text(place / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    for numbers in (second, first):
        with suppress(ValueError, OverflowError):  # "max", no such file, or numbers that no kernel writes
            quota, period = map(int, numbers)
            if quota > 0 and period > 0:
                return quota / period
    return None


def _text(path: Path) -> str:
    """What a file of the system says; "" where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode(errors="replace").strip()
    except (OSError, ValueError):  # a name with a null
        return ""
