"""How much time and memory the process of a grammar may take: of the system, since nothing else holds it."""

import contextlib
import os
import signal
import sys

_MAX_MEMORY_BYTES = 128 << 20  # beside what the tokenizer takes


def limit_memory() -> None:
    if sys.platform == "win32":
        return
    import resource

    most = _MAX_MEMORY_BYTES + _address_space()
    limits = ((resource.RLIMIT_AS, most), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0))
    for kind, each in limits:
        with contextlib.suppress(ValueError, OSError):  # macOS refuses to bound a process's memory
            resource.setrlimit(kind, (each, each))


def _address_space() -> int:
    """Bytes of it that the tokenizer and the interpreter take, of which macOS says nothing."""
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 1 << 30


def start_clock(cpu_s: float) -> None:
    """End this process after that much CPU time; it has no handler to run, so nothing delays it."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, max(cpu_s, 1e-3))


def stop_clock(left_s: float) -> float:
    """CPU seconds that are left of those the clock was started with."""
    return left_s if sys.platform == "win32" else signal.setitimer(signal.ITIMER_PROF, 0)[0]
