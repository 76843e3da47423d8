"""How much memory is free, by the machine and by the container's limit."""

from pathlib import Path

import pytest

from reader_edge_runtime.machine.free_memory import free_bytes

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


def test_without_a_container_the_machine_tells_or_nobody(machine: Path) -> None:
    assert free_bytes(machine) == 10_240_000_000
    (machine / "proc" / "meminfo").unlink()
    assert free_bytes(machine) is None


def test_memory_without_swap_is_what_loads_quickly(machine: Path) -> None:
    assert free_bytes(machine, has_swap=False) == 8_192_000_000
