"""What a command costs: time, and the peak memory of all its processes as the system counts it. Linux alone.

Memory that several processes share, as after a fork, counts once (PSS of /proc/PID/smaps_rollup). Pages of mapped files
count apart: they are copies of what lies on disk, and the system takes them back when it needs the room.
"""

import ctypes
import io
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_PROC = Path("/proc")
_PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """anonymous: bytes that only memory (or swap) holds. mapped: bytes of files that are mapped and were read."""

    anonymous: int = 0
    mapped: int = 0

    @property
    def total(self) -> int:
        return self.anonymous + self.mapped

    def __add__(self, other: "MemoryUse") -> "MemoryUse":
        return MemoryUse(self.anonymous + other.anonymous, self.mapped + other.mapped)


@dataclass(slots=True)
class Peaks:
    """The most at any time: of anonymous memory, and of all memory; both need not be at one time."""

    anonymous: int = 0
    total: int = 0

    def take(self, use: MemoryUse) -> None:
        self.anonymous = max(self.anonymous, use.anonymous)
        self.total = max(self.total, use.total)


@dataclass(slots=True)
class Stage:
    """From one line of the command's output to the next; "" before the first. seconds: the wall time of that."""

    line: str
    start_s: float
    seconds: float = 0.0
    peaks: Peaks = field(default_factory=Peaks)


@dataclass(frozen=True, slots=True)
class Cost:
    """exit_code: negative for a signal. cpu_s: user and system time of all processes that were waited for."""

    exit_code: int
    seconds: float
    cpu_s: float
    stages: Sequence[Stage]
    num_samples: int

    @property
    def peaks(self) -> Peaks:
        return Peaks(*(max(getattr(s.peaks, name) for s in self.stages) for name in ("anonymous", "total")))


def run_and_measure(command: Sequence[str], interval_s: float = 0.05) -> Cost:
    """Run a command to its end, its output passed on to stderr line by line.

    Counts all children of this process, so it should have no others.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # processes that lose their parent become ours
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    stages = [Stage("", 0.0)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    reader = threading.Thread(target=_follow, args=(process, stages, start), daemon=True)
    reader.start()
    num_samples = 0
    while process.poll() is None:
        _sample(stages[-1].peaks)
        num_samples += 1
        time.sleep(interval_s)
    seconds = time.perf_counter() - start
    reader.join(timeout=1.0)  # what goes on in the background may hold the output open
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    for stage, end_s in zip(stages, [*(stage.start_s for stage in stages[1:]), seconds], strict=True):
        stage.seconds = end_s - stage.start_s
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(process.returncode, seconds, cpu_s, stages, num_samples)


def _follow(process: subprocess.Popen[bytes], stages: list[Stage], start: float) -> None:
    assert process.stdout is not None
    for line in io.TextIOWrapper(process.stdout, "utf-8", errors="replace", newline="\n"):
        sys.stderr.write(line)
        last_shown = line.strip().rpartition("\r")[2]  # of a progress bar
        stages.append(Stage(last_shown, time.perf_counter() - start))


def _sample(peaks: Peaks) -> None:
    """Shared pages count apart only where a sum that counts them for each process could be a new peak: that takes
    the system many milliseconds where processes are large.
    """
    pids = descendants(os.getpid())
    upper = sum((resident(each) for each in pids), MemoryUse())
    if upper.anonymous > peaks.anonymous or upper.total > peaks.total:
        peaks.take(memory_of(pids))


def memory_of(pids: Sequence[int]) -> MemoryUse:
    """What processes use together; those that have ended use nothing."""
    return sum((_proportional(pid) for pid in pids), MemoryUse())


def resident(pid: int) -> MemoryUse:
    """Of one process, with all that it shares."""
    sizes = _sizes(_PROC / str(pid) / "status")
    return MemoryUse(
        sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0) + sizes.get("VmSwap", 0), sizes.get("RssFile", 0)
    )


def _proportional(pid: int) -> MemoryUse:
    sizes = _sizes(_PROC / str(pid) / "smaps_rollup")
    anonymous = sum(sizes.get(name, 0) for name in ("Pss_Anon", "Pss_Shmem", "SwapPss"))
    return MemoryUse(anonymous, sizes.get("Pss_File", 0))


def descendants(pid: int) -> list[int]:
    """All processes below one, whose parent may be gone meanwhile."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            children.setdefault(_parent(entry), []).append(int(entry.name))
    found, pending = [], [pid]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def _parent(entry: Path) -> int:
    try:
        stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def _sizes(path: Path) -> dict[str, int]:
    """Lines such as "Pss:  12 kB" in bytes; none of a process that has ended."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): 1024 * int(size) for name, size, _ in pairs}
