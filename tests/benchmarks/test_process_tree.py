"""benchmarks.exports.process_tree: memory of all processes of a command, each page once, files apart."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.exports.process_tree import descendants, memory_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MIB = 1 << 20
# A program that holds bytes in anonymous memory, then in a process of its own; or pages of a mapped file.
HOLD = "block = bytearray(b'x') * (64 << 20)"
FORK = f"""
import os, signal
{HOLD}
if os.fork() == 0:
    {{child}}
    print(os.getpid(), flush=True)
    signal.pause()
signal.pause()
"""
MAP = """
import mmap, signal, sys
file = open(sys.argv[1], "rb")
pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
sum(pages[::4096])
print("ready", flush=True)
signal.pause()
"""


@contextmanager
def held(source: str, *arguments: str) -> Iterator[list[int]]:
    """The processes of a program that has printed its first line."""
    process = subprocess.Popen([sys.executable, "-c", source, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield (pids := [process.pid, *descendants(process.pid)])
    finally:
        for pid in reversed(pids):
            subprocess.run(["kill", str(pid)], check=True)
        process.wait()
        process.stdout.close()


def test_memory_that_a_fork_shares_counts_once() -> None:
    with held(FORK.format(child="pass")) as pids:
        assert len(pids) == 2
        assert 64 * MIB <= memory_of(pids).anonymous < 128 * MIB


def test_memory_of_each_process_counts() -> None:
    with held(FORK.format(child="own = bytearray(b'y') * (64 << 20)")) as pids:
        assert memory_of(pids).anonymous >= 128 * MIB
        assert memory_of(pids[:1]).anonymous < 128 * MIB


def test_pages_of_a_mapped_file_are_kept_apart(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(64 * MIB))
    with held(MAP, str(tmp_path / "file")) as pids:
        use = memory_of(pids)
    assert use.mapped >= 64 * MIB
    assert use.anonymous < 64 * MIB
    assert use.total == use.anonymous + use.mapped


def test_a_process_that_has_ended_uses_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert memory_of([process.pid]).total == 0


def test_the_script_reports_each_stage_and_exits_as_the_command_does(tmp_path: Path) -> None:
    child = f"import time; {HOLD}; time.sleep(1)"  # long enough for many samples
    command = f"""
import subprocess, sys
print("0 %\\r50 %\\rsmall", flush=True)
print("large", flush=True)
subprocess.run([sys.executable, "-c", "{child}"])
sys.exit(3)
"""
    script = [sys.executable, "-m", "benchmarks.exports", "--json", str(tmp_path / "figures.json")]
    done = subprocess.run([*script, "--", sys.executable, "-c", command], capture_output=True, text=True)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert done.returncode == figures["exit_code"] == 3
    assert [stage["line"] for stage in figures["stages"]] == ["", "small", "large"]
    assert figures["stages"][1]["peaks"]["anonymous"] < 64 * MIB <= figures["stages"][2]["peaks"]["anonymous"]
    assert figures["peaks"] == figures["stages"][2]["peaks"]
    assert figures["seconds"] >= 1
    assert done.stdout == ""
    assert "in all: exit code 3" in done.stderr
