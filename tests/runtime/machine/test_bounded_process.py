"""Work in a copy of this process: what takes too much has no result, and leaves nothing behind."""

import gc
import os
import sys
import threading
import time
from collections.abc import Callable

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
    Session()
    assert run_bounded(lambda: b"%d" % gc.collect()) is not None
    gc.collect()
    assert not gc.get_freeze_count()
