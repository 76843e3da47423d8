"""Memory that the machine has left, and what this process gives back: read pages of files, freed blocks.

Pages of a mapped file count as a process's memory once they were read, sixteen to 512 at a time. Given back, they stay
in the system's cache and are read from there when they are wanted again.
"""

import ctypes
import functools
import mmap
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_MAPS, _SMAPS = Path("/proc/self/maps"), Path("/proc/self/smaps")
_MIN_BYTES = 4 << 20  # smaller mappings are not worth the call, nor four in all smaps' walk through all memory
_HUGE = 2 << 20  # bytes of a huge page, which begins at a multiple of them
_MAPPING = r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+ +"  # and its file
_UNWRITTEN = r"(?:\w+:.*\n)*?Anonymous: +0 kB"  # of what smaps has behind a mapping: pages of this process's own

# Of glibc's malloc.h. Blocks from the threshold on are mapped one by one, and unmapped when they are freed.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LOADING_THRESHOLD, _THRESHOLD = 256 << 10, 4 << 20

_LOADING = threading.Lock()

Range = tuple[int, int]  # address and size in bytes


class FilePages:
    """The pages of a file that this process has mapped and not written into. Elsewhere than on Linux there are none.

    They are looked up once, so the file has to stay mapped for as long as `forget` is called.
    others: mappings of the file that somebody else made, and may undo. ranges: the mappings, read or not.
    """

    def __init__(self, file: Path, others: Sequence[Range] = ()) -> None:
        num_bytes = sum(size for _, size in _large(mapped_ranges(file), others))
        self.ranges = _large(_mappings(file, _SMAPS, _UNWRITTEN), others) if num_bytes >= 4 * _MIN_BYTES else []
        self._split()

    def forget(self) -> None:
        """Take the pages out of this process's memory."""
        for start, size in self.ranges:
            _advise(start, size, "MADV_DONTNEED")

    def _split(self) -> None:
        """Have no huge page within one mapping, else 2 MiB may come with every byte that is read.

        Linux maps those of a file against MADV_NOHUGEPAGE. Mappings that differ in anything are kept apart, and leaving
        a file's pages out of core dumps changes nothing: they are not in there.
        """
        for start, size in self.ranges:
            for middle in range(start // _HUGE * _HUGE + _HUGE // 2, start + size, 2 * _HUGE):
                first, end = max(start, middle), min(start + size, middle + _HUGE)
                _advise(first, end - first, "MADV_DONTDUMP")


@contextmanager
def large_blocks_apart() -> Iterator[None]:
    """Give every large block of memory that is freed within back to the system at once: loading frees many.

    Else glibc keeps them in a heap full of holes; its threshold stays at 4 MiB afterwards. Other C libraries are left
    alone. One thread at a time: the threshold is the process's.
    """
    mallopt = getattr(_c_library(), "mallopt", lambda *arguments: None)
    with _LOADING:
        mallopt(_M_MMAP_THRESHOLD, _LOADING_THRESHOLD)
        try:
            yield
        finally:
            mallopt(_M_MMAP_THRESHOLD, _THRESHOLD)
            mallopt(_M_TRIM_THRESHOLD, 2 * _THRESHOLD)


def mapped_ranges(file: Path) -> list[Range]:
    """Where this process has mapped a file, written into or not."""
    return list(_mappings(file, _MAPS))


@functools.cache
def _c_library() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None


def _advise(start: int, size: int, advice: str) -> None:
    library = _c_library()
    if library is not None:
        library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), getattr(mmap, advice))


def _mappings(file: Path, listing: Path, wanted: str = "") -> Iterator[Range]:
    """What is mapped of a file, by a listing of all mappings. wanted: what it says of each, as a pattern."""
    try:
        text = listing.read_text(encoding="utf-8", errors="surrogateescape") if _c_library() else ""
    except OSError:  # a sandbox may hide it
        return
    for mapping in re.finditer(f"{_MAPPING}{re.escape(str(file.resolve()))}\n{wanted}", text, re.MULTILINE):
        start, end = (int(address, 16) for address in mapping.groups())
        yield start, end - start


def _large(ranges: Iterable[Range], others: Sequence[Range]) -> list[Range]:
    """Those that are worth a call, in one piece each, without what others have mapped."""
    parts = _joined(ranges)
    for other in others:  # the system joins neighbours, also those of two sessions
        parts = [part for each in parts for part in _without(each, other)]
    return [(start, size) for start, size in parts if size >= _MIN_BYTES]


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """Ranges with those that follow each other without a gap, as parts of a split one do, in one piece."""
    joined: list[Range] = []
    for start, size in ranges:
        if joined and sum(joined[-1]) == start:
            first, before = joined.pop()
            start, size = first, before + size
        joined.append((start, size))
    return joined


def _without(whole: Range, part: Range) -> list[Range]:
    """What is left of a range, before and behind a part of it."""
    (start, size), (first, num_bytes) = whole, part
    end, last = start + size, first + num_bytes
    if last <= start or end <= first:
        return [whole]
    return [(a, b - a) for a, b in ((start, first), (last, end)) if a < b]


_CGROUP = "sys/fs/cgroup"  # a container's own, of the second version


def free_bytes(root: Path = Path("/"), has_swap: bool = True) -> int | None:
    """Bytes that a process can still take; None where the system does not tell.

    root: where its /proc and /sys are. has_swap: whether swap counts too.
    """
    known = _meminfo(root / "proc/meminfo")
    cgroup = root / _CGROUP
    if "MemAvailable" not in known:
        return _left_of_container(cgroup, 0)
    swap = known.get("SwapFree", 0) if has_swap else 0
    left = _left_of_container(cgroup, swap)
    of_machine = known["MemAvailable"] + swap
    return of_machine if left is None else min(of_machine, left)


def _meminfo(file: Path) -> dict[str, int]:
    """Bytes by name."""
    if not file.is_file():
        return {}
    lines = re.findall(r"^(\w+):\s+(\d+) kB$", file.read_text(encoding="ascii"), re.MULTILINE)
    return {name: int(kilobytes) * 1024 for name, kilobytes in lines}


def _left_of_container(cgroup: Path, swap: int) -> int | None:
    """What its limit leaves, pages of files included: these give way. And what it may take of the machine's free swap.

    None without a limit.
    """
    try:
        fields = dict(line.split() for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines())
        files = sum(int(fields.get(name, 0)) for name in ("active_file", "inactive_file", "slab_reclaimable"))
        left = max(0, _limit(cgroup, "memory") + files)
    except (OSError, ValueError):  # "max" is none
        return None
    try:
        return left + min(swap, max(0, _limit(cgroup, "memory.swap")))
    except (OSError, ValueError):
        return left + swap


def _limit(cgroup: Path, kind: str) -> int:
    """Bytes up to a limit. Raises OSError or ValueError where there is none."""
    limit, used = (int((cgroup / f"{kind}.{name}").read_text(encoding="ascii")) for name in ("max", "current"))
    return limit - used
