"""Bounded processes: what takes too much has no result, and nothing is left behind, however their owner ends."""

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reader_edge_runtime.machine.bounded_process import run_bounded

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork: work runs without bounds")


def _forever() -> bytes:
    while True:
        pass


def _endless_text() -> bytes:
    return b"x" * (1 << 40)


def _failing() -> bytes:
    raise ValueError("odd")


def _waiting() -> bytes:
    threading.Event().wait()
    return b""


def test_work_within_bounds_has_its_result() -> None:
    assert int(run_bounded(lambda: b"%d" % os.getpid()) or 0) not in (0, os.getpid())


@pytest.mark.parametrize("work", [_forever, _endless_text, _failing], ids=lambda work: str(work.__name__))
def test_work_that_takes_too_much_or_fails_has_no_result(work: Callable[[], bytes]) -> None:
    assert run_bounded(work, cpu_s=0.2) is None


def test_work_that_only_waits_has_no_result() -> None:
    start = time.monotonic()
    assert run_bounded(_waiting, max_s=0.1) is None
    assert time.monotonic() - start < 60


def test_the_copy_leaves_our_garbage_alone() -> None:
    class Session:  # which ends threads when it goes, where there are any
        def __init__(self) -> None:
            self.itself, self.home = self, os.getpid()

        def __del__(self) -> None:
            if os.getpid() != self.home:
                os._exit(1)

    gc.collect()
    num_frozen = gc.get_freeze_count()
    Session()
    assert run_bounded(lambda: b"%d" % gc.collect()) is not None
    gc.collect()
    assert gc.isenabled()
    assert gc.get_freeze_count() == num_frozen  # what a host froze stays frozen, and nothing else


_OWNER = """
import os, time
from reader_edge_runtime.machine.bounded_process import BoundedProgram
program = BoundedProgram("reader_edge_runtime.text.template.template_worker")
session = program.start()
print(program._forker.process.pid, flush=True)
time.sleep(600)
"""


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not tell a process's children")
def test_a_program_and_its_sessions_end_with_a_process_that_is_killed() -> None:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    owner = subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True, env=environ)
    with owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        assert [_is_alive(each) for each in pids] == [True, True]
        owner.kill()
    end = time.monotonic() + 60
    while any(map(_is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(map(_is_alive, pids))
