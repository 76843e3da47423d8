"""One decoder used by several threads: one steps at a time, and any may cancel requests."""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.errors import BusyError, ClosedError

T = TypeVar("T")

_EXIT_WAIT_S = 5.0  # for another thread's step


class SharedDecoder:
    """Lends a decoder to one thread at a time.

    is_working: whether some thread has it.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.is_working = False
        self._decoder: Decoder | None = decoder
        self._lock = threading.RLock()
        self._closed: deque[Request] = deque()
        # Python ends daemon threads at its exit; ending one inside native code aborts the process.
        weakref.finalize(self, self._lock.acquire, timeout=_EXIT_WAIT_S)

    @property
    def decoder(self) -> Decoder:
        """Raises ClosedError."""
        if self._decoder is None:
            raise ClosedError("This engine is closed: load it again.")
        return self._decoder

    @property
    def is_closed(self) -> bool:
        """Whether nobody gets the decoder any more."""
        return self._decoder is None

    def close(self) -> None:
        """End all requests and let the decoder go, with the memory that it holds. Waits for another thread's step."""
        if self.is_closed:
            return
        with self.working() as decoder:
            decoder.cancel_all()
            decoder.flush_prefixes()
            self._decoder = None

    @contextmanager
    def working(self) -> Iterator[Decoder]:
        """The decoder, for this thread alone, without the requests that were withdrawn meanwhile.

        Raises BusyError if the same thread is using it already, since it would wait for itself, and ClosedError.
        """
        with self._lock:
            if self.is_working:
                raise BusyError("This thread is inside a step of this engine, as in a signal handler: ask after it.")
            try:
                decoder, self.is_working = self.decoder, True
                while self._closed:
                    decoder.cancel(self._closed[0])
                    self._closed.popleft()
                yield decoder
            finally:
                self.is_working = False

    def enqueue(self, request: Request) -> None:
        """Have the decoder begin a request with its next step."""
        with self.working() as decoder:
            decoder.enqueue(request)

    def until(self, take: Callable[[], T | None]) -> T:
        """What `take` gives once it gives something; decodes until then. Others get their turn after each step."""
        while True:
            with self.working() as decoder:
                if (taken := take()) is not None:
                    return taken
                decoder.step()

    def withdraw(self, *requests: Request) -> None:
        """End requests when the decoder next works. Never waits."""
        self._closed.extend(requests)
