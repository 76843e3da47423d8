"""Threads against the cores that this process really has: affinity, a container's quota, other programs."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath

from reader_edge_runtime.examination.finding import Finding, Severity
from reader_edge_runtime.examination.surroundings import Surroundings

_CGROUP = PurePosixPath("sys/fs/cgroup")
_MAX_DEPTH = 64  # of cgroups in each other
_BUSY = 1.5  # programs that want to run, for each core


def check_cores(surroundings: Surroundings) -> Iterator[Finding]:
    """Whether as many threads as reader-edge starts have a core each."""
    usable, quota = surroundings.num_usable_cores, cpu_quota(surroundings)
    if quota is not None and quota < usable:
        yield Finding(
            "cores",
            Severity.SLOWER,
            f"A quota leaves this process {quota:g} cores' time, and reader-edge would compute with {usable} threads.",
            f"Give --threads {max(1, int(quota))}, or raise the container's limit of CPUs.",
        )
    elif usable < surroundings.num_cores:
        yield Finding(
            "cores",
            Severity.NOTE,
            f"This process may run on {usable} of {surroundings.num_cores} cores.",
            "Widen its CPU affinity, or the container's set of CPUs, if it is to have more.",
        )
    else:
        yield Finding("cores", Severity.WELL, f"This process may use all of the {usable} cores.")
    load = _load(surroundings)
    if load > _BUSY * surroundings.num_cores:
        yield Finding(
            "load",
            Severity.SLOWER,
            f"Other programs keep the machine busy: a load of {load:.1f} on {surroundings.num_cores} cores.",
            "End them, or try again later: times that are measured meanwhile are too long.",
        )


def cpu_quota(surroundings: Surroundings) -> float | None:
    """How many cores' time this process may take, by the tightest of its cgroups; None without a limit."""
    places = _places(surroundings)
    quotas = [quota for place in places if (quota := _quota(surroundings, place)) is not None]
    return min(quotas, default=None)


def _places(surroundings: Surroundings) -> list[PurePosixPath]:
    """The cgroup of this process and those above it, of both versions; a container sees its own as the root."""
    places = {_CGROUP, _CGROUP / "cpu"}
    for line in (surroundings.text("proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        base = _CGROUP / "cpu" if "cpu" in controllers.split(",") else _CGROUP
        own = PurePosixPath(path.lstrip("/"))
        is_plain = ".." not in own.parts and len(own.parts) <= _MAX_DEPTH
        if (not controllers or "cpu" in controllers.split(",")) and is_plain:
            places.update(base / part for part in (own, *own.parents))
    return sorted(places)


def _quota(surroundings: Surroundings, place: PurePosixPath) -> float | None:
    second = (surroundings.text(str(place / "cpu.max")) or "").split()
    first = [surroundings.text(str(place / f"cpu.cfs_{name}_us")) or "" for name in ("quota", "period")]
    for numbers in (second, first):
        with suppress(ValueError, OverflowError):  # "max", no such file, or numbers that no kernel writes
            quota, period = map(int, numbers)
            if quota > 0 and period > 0:
                return quota / period
    return None


def _load(surroundings: Surroundings) -> float:
    """Programs that ran or waited for a core in the last minute; 0 where the system does not tell."""
    words = (surroundings.text("proc/loadavg") or "").split()
    with suppress(ValueError, IndexError):
        return float(words[0])
    return 0.0
