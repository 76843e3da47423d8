"""What is known of the processor: its name, how much of it may be used, and whether int8 sums saturate on it."""

from pathlib import Path

import pytest

from reader_edge_runtime.machine import processor
from reader_edge_runtime.machine.processor import has_saturating_sums, num_threads, processor_name


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("flags : fpu sse4_2 avx avx2 fma", True),
        ("flags : fpu avx2 avx512f", True),
        ("flags : fpu avx2 avx_vnni", False),
        ("flags : fpu avx2 avx512f avx512_vnni", False),
        ("flags : fpu sse4_2", False),
        ("Features : fp asimd asimddp", False),
    ],
)
def test_where_int8_sums_saturate(tmp_path: Path, cpuinfo: str, expected: bool) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor : 0\nmodel name : some\n{cpuinfo}\n")
    assert has_saturating_sums(path) is expected
    assert not has_saturating_sums(tmp_path / "missing")


def test_the_name_tells_kinds_of_cores_apart(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor : 0\nmodel name\t: Some CPU @ 2 GHz\nprocessor : 1\nmodel name\t: Some CPU @ 2 GHz\n")
    assert processor_name(path) == "Some CPU @ 2 GHz"
    path.write_text("processor : 0\nCPU part\t: 0xd05\nprocessor : 1\nCPU part\t: 0xd0a\n")
    assert processor_name(path) == "0xd05 0xd0a"
    assert processor_name(tmp_path / "missing")


@pytest.mark.parametrize(("wanted", "given"), [(0, 3), (1, 1), (3, 3)])
def test_threads_are_those_that_are_wanted(wanted: int, given: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "num_usable_cores", lambda: 3)
    assert num_threads(wanted) == given


@pytest.mark.parametrize("wanted", [4, 64, 1024])
def test_more_threads_than_usable_cores_are_cut_with_a_warning(wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "num_usable_cores", lambda: 3)
    sentence = f"{wanted} threads would wait for each other on the 3 cores that this process may use: 3 will compute."
    with pytest.warns(UserWarning, match=sentence):
        assert num_threads(wanted) == 3
