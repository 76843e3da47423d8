"""Work on what came from outside, in a copy of this process that is bounded in time and memory."""

import contextlib
import gc
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_MAX_CPU_S = 20
_MAX_S = 120.0  # however busy the machine is
_MAX_MEMORY_BYTES = 1 << 30  # beside what this process has


def in_fork(work: Callable[[], T]) -> T | None:
    """What a function returns, which must be picklable; None where it takes more time or memory than it may.

    On Windows, which cannot fork, it runs here, without bounds.
    """
    if sys.platform == "win32":
        return work()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(work, sender), daemon=True)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning), _kept_garbage():
        process.start()  # the warning is of threads, which the copy lacks
    sender.close()
    try:
        result: T | None = receiver.recv() if receiver.poll(_MAX_S) else None
    except EOFError:
        return None
    finally:
        process.kill()
        process.join()
    return result


@contextlib.contextmanager
def _kept_garbage() -> Iterator[None]:
    """Have a copy made here leave our garbage alone: a session in it would wait for threads that were not copied."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _run(work: Callable[[], T], sender: Connection) -> None:
    import faulthandler
    import resource

    faulthandler.disable()  # a library that aborts where memory is short is what bounds are for
    limits = [(resource.RLIMIT_CPU, _MAX_CPU_S), (resource.RLIMIT_CORE, 0)]
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limits.append((resource.RLIMIT_AS, pages * resource.getpagesize() + _MAX_MEMORY_BYTES))
    for kind, most in limits:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))
    with contextlib.suppress(MemoryError):
        sender.send(work())
