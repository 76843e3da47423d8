"""Threads against the cores that this process really has: affinity, a container's quota, other programs."""

from collections.abc import Iterator
from contextlib import suppress

from reader_edge_runtime.examination.finding import Finding, Severity
from reader_edge_runtime.examination.surroundings import Surroundings
from reader_edge_runtime.machine.processor import cpu_quota

_BUSY = 1.5  # programs that want to run, for each core


def check_cores(surroundings: Surroundings) -> Iterator[Finding]:
    """How many of the cores compute here, and whether they have time for it."""
    usable, quota = surroundings.num_allowed_cores, cpu_quota(surroundings.root)
    if quota is not None and quota < usable:
        number = max(1, int(quota))
        computing = "1 of them computes" if number == 1 else f"{number} of them compute"
        yield Finding(
            "cores",
            Severity.NOTE,
            f"A quota leaves this process {quota:g} of {usable} cores' time, so {computing}.",
            "Raise the container's limit of CPUs, if it is to have more.",
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


def _load(surroundings: Surroundings) -> float:
    """Programs that ran or waited for a core in the last minute; 0 where the system does not tell."""
    words = (surroundings.text("proc/loadavg") or "").split()
    with suppress(ValueError, IndexError):
        return float(words[0])
    return 0.0
