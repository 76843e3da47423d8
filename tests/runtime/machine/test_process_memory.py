"""Memory that is given back: it counts no more, and nothing that anybody reads has changed."""

import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from reader_edge.terminal.memory import resident_bytes
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.machine import process_memory
from reader_edge_runtime.machine.process_memory import FilePages, large_blocks_apart, mapped_ranges
from reader_edge_runtime.package.model_package import ModelPackage

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere than on Linux nothing is given back")

NUM_BYTES = 64 << 20

# Blocks of 2 MiB with something small behind each, freed after one of 16 MiB: that teaches glibc to keep such blocks.
HOLES = """
import contextlib, sys
import numpy as np
from reader_edge.terminal.memory import resident_bytes
from reader_edge_runtime.machine.process_memory import large_blocks_apart
with large_blocks_apart() if sys.argv[1] == "apart" else contextlib.nullcontext():
    np.ones(16 << 20, np.uint8)
    before = resident_bytes()
    blocks = [(np.ones(2 << 20, np.uint8), np.ones(100_000, np.uint8)) for _ in range(32)]
    small = [block[1] for block in blocks]
    del blocks
    print(resident_bytes() - before)
"""


def num_bytes(pages: FilePages) -> int:
    return sum(size for _, size in pages.ranges)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights with a blank.data"
    np.arange(NUM_BYTES // 8).tofile(path)
    return path


def test_read_pages_of_a_file_are_given_back_and_read_again(file: Path) -> None:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        array = np.frombuffer(mapped, np.int64)
        pages = FilePages(file)
        total = int(array.sum())
        read = resident_bytes()
        pages.forget()
        assert read - resident_bytes() > 0.9 * NUM_BYTES
        assert int(array.sum()) == total
        del array


def test_a_byte_is_read_without_two_mebibytes_around_it(file: Path) -> None:
    """A file just written may lie in the system's cache in pieces of that size."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        array = np.frombuffer(mapped, np.int64)
        pages = FilePages(file)
        before = resident_bytes()
        total = int(array[:: (2 << 20) // 8].sum())
        assert total > 0
        assert resident_bytes() - before < NUM_BYTES / 4
        assert num_bytes(pages) == num_bytes(FilePages(file)) > 0.9 * NUM_BYTES
        del array


def test_only_pages_that_are_mapped_and_not_written_are_given_back(file: Path) -> None:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        mapped[5] = 77
        FilePages(file).forget()
        assert mapped[5] == 77
    pages = FilePages(file)
    pages.forget()
    assert pages.ranges == []


def test_pages_that_somebody_else_mapped_are_left_alone(file: Path) -> None:
    """The other mapping may be gone, and other memory in its place, when pages are forgotten."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as first:
        array = np.frombuffer(first, np.int64)
        others = mapped_ranges(file)
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as second:
            both, own = FilePages(file), FilePages(file, others)
            assert (num_bytes(both), num_bytes(own)) == (2 * NUM_BYTES, NUM_BYTES)
            again = np.frombuffer(second, np.int64)
            assert array.sum() == again.sum()
            read = resident_bytes()
            own.forget()
            assert 0.9 * NUM_BYTES < read - resident_bytes() < 1.1 * NUM_BYTES
            del again
        del array


@pytest.mark.long
def test_two_sessions_forget_each_its_own_pages(demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the second one wipes out memory that took the place of the first one's weights, once that is gone."""
    monkeypatch.setattr(process_memory, "_MIN_BYTES", 1 << 18)  # the demo's weights are small
    first, second = (HostTarget.open(ModelPackage.open(demo_folder), uses_native=False) for _ in range(2))
    pages = [
        {page for start, size in target._weights.ranges for page in range(start, start + size, mmap.PAGESIZE)}
        for target in (first, second)
        if target._weights is not None
    ]
    assert all(pages)
    assert not set.intersection(*pages)


def test_a_system_without_a_known_c_library_is_left_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, "_c_library", lambda: None)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        array = np.frombuffer(mapped, np.int64)
        with large_blocks_apart():
            array.sum()
        read = resident_bytes()
        pages = FilePages(file)
        pages.forget()
        assert pages.ranges == []
        assert read - resident_bytes() < 0.1 * NUM_BYTES
        del array


def left_over(how: str) -> int:
    """Bytes that a process holds more than before it took and freed 64 MiB."""
    return int(subprocess.run([sys.executable, "-c", HOLES, how], capture_output=True, check=True, text=True).stdout)


def test_large_blocks_go_back_to_the_system_where_they_are_apart() -> None:
    assert left_over("apart") < 8 << 20
    assert left_over("together") > 32 << 20
