"""What is known of the machine: its processor, how much memory is free, and a cache that is this user's alone."""

import os
import stat
from pathlib import Path

import pytest

from reader_edge_runtime.machine import cache_folder, processor
from reader_edge_runtime.machine.cache_folder import make_private, why_untrusted, write_private
from reader_edge_runtime.machine.process_memory import free_bytes
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


has_permissions = pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
CGROUP = "sys/fs/cgroup"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with 10 GB free, and a container on it that has taken 3 GB, a third of it pages of files."""
    (tmp_path / "proc").mkdir()
    cgroup = tmp_path / "sys" / "fs" / "cgroup"
    cgroup.mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  8000000 kB\nSwapFree: 2000000 kB\n")
    (cgroup / "memory.current").write_text("3000000000\n")
    (cgroup / "memory.swap.current").write_text("500000000\n")
    (cgroup / "memory.swap.max").write_text("500000000\n")
    (cgroup / "memory.stat").write_text("anon 2000000000\nactive_file 300000000\ninactive_file 700000000\n")
    return tmp_path


@pytest.mark.parametrize(
    ("limit", "free"), [("4000000000", 2_000_000_000), ("1000", 0), ("max", 10_240_000_000), ("10" * 9, 10_240_000_000)]
)
def test_a_container_s_limit_bounds_what_is_free(machine: Path, limit: str, free: int) -> None:
    (machine / CGROUP / "memory.max").write_text(f"{limit}\n")
    assert free_bytes(machine) == free


@pytest.mark.parametrize(("swap", "free"), [("600000000", 2_100_000_000), ("max", 4_048_000_000)])
def test_a_container_may_swap_as_far_as_it_and_the_machine_have_room(machine: Path, swap: str, free: int) -> None:
    (machine / CGROUP / "memory.max").write_text("4000000000\n")
    (machine / CGROUP / "memory.swap.max").write_text(f"{swap}\n")
    assert free_bytes(machine) == free


def test_memory_is_the_machine_s_without_a_container_with_swap_or_not(machine: Path) -> None:
    assert free_bytes(machine, has_swap=False) == 8_192_000_000
    assert free_bytes(machine) == 10_240_000_000
    (machine / "proc" / "meminfo").unlink()
    assert free_bytes(machine) is None


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache_folder, "user_cache_path", lambda name: tmp_path / name)
    return tmp_path / "reader-edge"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@has_permissions
def test_what_is_kept_is_this_users_alone_whatever_the_umask(root: Path) -> None:
    before = os.umask(0o002)
    try:
        write_private(root / "widths" / "some.json", b"{}")
    finally:
        os.umask(before)
    assert (mode_of(root), mode_of(root / "widths"), mode_of(root / "widths" / "some.json")) == (0o700, 0o700, 0o600)
    assert why_untrusted(root / "widths" / "some.json", root) is None
    (root / "widths" / "some.json").chmod(0o666)
    write_private(root / "widths" / "some.json", b"{}")
    assert mode_of(root / "widths" / "some.json") == 0o600


@has_permissions
@pytest.mark.parametrize("place", ["", "iree", "iree/some.vmfb"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_code_that_others_could_have_written_is_refused_in_a_sentence(place: str, mode: int, root: Path) -> None:
    write_private(root / "iree" / "some.vmfb", b"code")
    (root / place).chmod(mode_of(root / place) | mode)
    fault = why_untrusted(root / "iree" / "some.vmfb", root)
    assert fault == (
        f"'{root / place}' can be written by its group or others, so no code is taken from there: `chmod go-w` it."
    )


@has_permissions
def test_code_of_another_user_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_private(root / "iree" / "some.vmfb", b"code")
    monkeypatch.setattr(os, "getuid", lambda: root.stat().st_uid + 1)
    fault = why_untrusted(root / "iree" / "some.vmfb", root)
    assert (
        fault == f"'{root / 'iree' / 'some.vmfb'}' belongs to another user, so no code is taken from there: remove it."
    )


@has_permissions
def test_what_is_not_there_yet_is_no_fault(root: Path) -> None:
    assert why_untrusted(root / "iree" / "some.vmfb", root) is None
    make_private(root / "iree", root)
    assert why_untrusted(root / "iree" / "some.vmfb", root) is None
