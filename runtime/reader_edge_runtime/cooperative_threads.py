"""Cooperative threads: each piece of work has a thread of its own, of which one runs at a time while the others wait.

So what they share needs no lock, and a thread that waits for something from outside lets the others run meanwhile.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")
_local = threading.local()


def yield_turn(is_over: Callable[[], bool]) -> bool:
    """Within one, let others go on until something is over; at once False outside, where nobody would."""
    here: CooperativeThread[object] | None = getattr(_local, "thread", None)
    if here is None:
        return False
    here.wait(is_over)
    return True


class CooperativeThread(Generic[_T]):
    """A piece of work, which runs while `go_on` waits for it, and at no other time."""

    is_done = False
    _error: BaseException | None = None

    def __init__(self, work: Callable[[], _T]) -> None:
        self._work = work
        self._goes_on, self._has_stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._is_over: Callable[[], bool] = lambda: True
        self._thrown: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def can_go_on(self) -> bool:
        """Whether what it waits for is over."""
        return not self.is_done and self._is_over()

    def go_on(self, thrown: BaseException | None = None) -> None:
        """Run until it gives way or is done. thrown: raised where it waits.

        An interrupt of this thread is raised when the work has stopped, and not before.
        """
        self._thrown, interrupt = thrown, None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="reader-edge-microbatch", daemon=True)
            self._thread.start()
        self._goes_on.release()
        while True:
            try:
                self._has_stopped.acquire()
                break
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def result(self) -> _T:
        """What work that is done gave. Raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._result

    def wait(self, is_over: Callable[[], bool]) -> None:
        """In its own thread: stop, and go on some time after something is over."""
        self._is_over = is_over
        self._has_stopped.release()
        self._goes_on.acquire()
        if (thrown := self._thrown) is not None:
            self._thrown = None
            raise thrown

    def _run(self) -> None:
        _local.thread = self
        self._goes_on.acquire()
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error
        self.is_done = True
        self._has_stopped.release()
