"""Zeros of which only pages that were written take memory, and which can be given back in part. Linux alone has them.

Elsewhere the system may keep what was given back, or count what nobody has written yet.
"""

import mmap
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

HAS_PAGES = sys.platform == "linux"
PAGE_BYTES = mmap.PAGESIZE


class PagedMemory:
    """Private memory, `num_bytes` of address space. Raises MemoryError where the system does not give that.

    Pages are never huge: 2 MiB that one row has touched would hold the rows of many heads, layers and slots.
    """

    def __init__(self, num_bytes: int) -> None:
        if sys.platform != "linux":
            self._mapping = mmap.mmap(-1, num_bytes)
            return
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        try:
            self._mapping = mmap.mmap(-1, num_bytes, flags=flags)
        except (OSError, OverflowError):
            raise MemoryError from None
        with suppress(OSError):  # a kernel may know none
            self._mapping.madvise(mmap.MADV_NOHUGEPAGE)

    def array(self, shape: Sequence[int], data_type: str) -> npt.NDArray[Any]:
        """All of it, which lives as long as any such array."""
        return np.frombuffer(self._mapping, data_type).reshape(shape)

    def give_back(self, start: int, end: int) -> None:
        """Let go of the pages in [start, end), which begin and end with them. Locked ones stay (mlockall(2))."""
        if sys.platform != "linux":
            return
        with suppress(OSError):
            self._mapping.madvise(mmap.MADV_DONTNEED, start, end - start)


def whole_pages(num_bytes: int) -> int:
    """Bytes of the pages that so many bytes take."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
