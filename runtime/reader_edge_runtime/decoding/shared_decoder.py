"""One decoder for several threads: each waits for the others' steps, and any may end requests at any time."""

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.errors import BusyError

_EXIT_WAIT_S = 5.0  # for another thread's step


class SharedDecoder:
    """Lends a decoder to one thread at a time.

    is_working: whether some thread has it.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.is_working = False
        self._decoder = decoder
        self._lock = threading.RLock()
        self._closed: deque[Request] = deque()
        # Python ends daemon threads at its exit; ending one inside native code aborts the process.
        weakref.finalize(self, self._lock.acquire, timeout=_EXIT_WAIT_S)

    @contextmanager
    def working(self) -> Iterator[Decoder]:
        """The decoder, for this thread alone, without the requests that were withdrawn meanwhile.

        Raises BusyError if the same thread is using it already, since it would wait for itself.
        """
        with self._lock:
            if self.is_working:
                raise BusyError("This thread is inside a step of this engine, as in a signal handler: ask after it.")
            try:
                self.is_working = True
                while self._closed:
                    self._decoder.cancel(self._closed[0])
                    self._closed.popleft()
                yield self._decoder
            finally:
                self.is_working = False

    def withdraw(self, *requests: Request) -> None:
        """End requests when the decoder next works. Never waits."""
        self._closed.extend(requests)
