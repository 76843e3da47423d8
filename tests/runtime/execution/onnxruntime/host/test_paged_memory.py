"""Memory of pages: zeros that can be written, given back in part, and refused where there is not so much."""

import sys

import pytest

from reader_edge_runtime.execution.onnxruntime.host.paged_memory import PAGE_BYTES, PagedMemory, whole_pages


@pytest.mark.parametrize("platform", [sys.platform, "win32"])
def test_pages_are_zeros_until_they_are_written(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    memory = PagedMemory(2 * PAGE_BYTES)
    array = memory.array((2, PAGE_BYTES // 4), "float32")
    assert not array.any()
    array[:] = 1
    memory.give_back(PAGE_BYTES, 2 * PAGE_BYTES)
    assert array[0].all()
    assert array[1].any() == (platform != "linux")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system says so in its own words")
@pytest.mark.parametrize("num_bytes", [1 << 62, 1 << 80])
def test_more_than_there_can_be_is_short_memory(num_bytes: int) -> None:
    with pytest.raises(MemoryError):
        PagedMemory(num_bytes)


def test_bytes_are_counted_in_whole_pages() -> None:
    assert [whole_pages(size) for size in (0, 1, PAGE_BYTES, PAGE_BYTES + 1)] == [
        0,
        PAGE_BYTES,
        PAGE_BYTES,
        2 * PAGE_BYTES,
    ]
