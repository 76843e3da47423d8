"""From a prompt to an answer that can be decoded, beside the event loop: encoded, and its grammar understood."""

import asyncio
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor

from reader_edge_runtime.answer import Answer
from reader_edge_runtime.config import GenerationConfig
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.drafting.device_drafts import DeviceDrafts
from reader_edge_runtime.engine import Engine
from reader_edge_runtime.errors import BusyError
from reader_edge_runtime.text.conversation import Encodable


class Preparation:
    """Grammars are understood one after the other, in a thread of their own: hostile ones delay grammars alone.

    max_grammars: answers with grammars that may be prepared, wait or run, each of which has a process.
    """

    def __init__(self, engine: Engine, max_grammars: int) -> None:
        self._engine = engine
        self._max_grammars = max_grammars
        self._threads = ThreadPoolExecutor(1, "reader-edge-grammars")
        self._lock = threading.Lock()
        self._num_pending = 0
        self._held: weakref.WeakSet[Request] = weakref.WeakSet()

    async def answer(
        self, prompt: Encodable, config: GenerationConfig | None, device: DeviceDrafts | None = None
    ) -> Answer:
        """Raises what `Engine.answer` does, and BusyError for more grammars than may be."""
        if not isinstance(config, GenerationConfig) or config.grammar is None:
            return await asyncio.to_thread(self._engine.answer, prompt, config, device)
        with self._lock:
            num = self._num_pending + sum(not request.is_closed for request in self._held)
            if num >= self._max_grammars:
                raise BusyError(f"{num} answers with grammars run or wait already: try again later.")
            self._num_pending += 1
        future = self._threads.submit(self._engine.answer, prompt, config, device)
        future.add_done_callback(self._end)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(_close)
            raise

    def _end(self, future: "Future[Answer]") -> None:
        with self._lock:
            self._num_pending -= 1
            if not future.cancelled() and future.exception() is None:
                self._held.add(future.result().request)


def _close(future: "Future[Answer]") -> None:
    """Give back what an answer holds for which nobody waits any more."""
    if not future.cancelled() and future.exception() is None:
        future.result().request.close()
