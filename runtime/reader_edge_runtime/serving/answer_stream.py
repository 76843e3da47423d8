"""The chunks of one answer, for the event loop that asks for them."""

import asyncio
from collections.abc import Awaitable, Callable

from reader_edge_runtime.answer import Answer, GenerationChunk
from reader_edge_runtime.errors import BusyError
from reader_edge_runtime.serving.worker import Worker
from reader_edge_runtime.stats import GenerationStats


class AnswerStream:
    """An asynchronous iterator over an answer's chunks. Leaving it, in whatever way, gives the request up.

    It starts with the first chunk, where it raises PromptError, ConfigError, CapacityError, BusyError or ClosedError
    for what cannot be answered. What makes the request fail later is raised after the last chunk.
    """

    _answer: Answer | None = None
    _error: Exception | None = None
    _is_over = False
    _is_awaited = False

    def __init__(self, worker: Worker, make_answer: Callable[[], Awaitable[Answer]], priority: int = 0) -> None:
        """make_answer: encodes the prompt, beside the event loop. priority: as of a request."""
        self._worker = worker
        self._make_answer: Callable[[], Awaitable[Answer]] | None = make_answer
        self._priority = priority
        self._chunks: asyncio.Queue[GenerationChunk] = asyncio.Queue()

    @property
    def stats(self) -> GenerationStats | None:
        """What the answer took so far, which goes on changing until its last chunk; None before it was requested."""
        return None if self._answer is None else self._answer.request.stats

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt as the model reads it; empty before it was requested."""
        request = None if self._answer is None else self._answer.request
        return [] if request is None else request.token_ids[: request.num_prompt_tokens]

    @property
    def left_out(self) -> tuple[str, ...]:
        """The parts of a lenient schema that the answer is not held to; none before its start."""
        return () if self._answer is None else self._answer.left_out

    def __aiter__(self) -> "AnswerStream":
        return self

    async def __anext__(self) -> GenerationChunk:
        error, self._error = self._error, None
        if error is not None:
            raise error
        if self._is_over:
            raise StopAsyncIteration
        if self._is_awaited:
            raise BusyError("Another task waits for this stream's next chunk: read it by one alone.")
        self._is_awaited = True
        try:
            if self._answer is None:
                await self._start()
            chunk = await self._chunks.get()
        except BaseException:  # a cancelled task's too
            self.give_up()
            raise
        finally:
            self._is_awaited = False
        self._is_over = self._is_over or chunk.finish_reason is not None
        self._error = chunk.error
        return chunk

    async def aclose(self) -> None:
        """Give the request up."""
        self.give_up()

    def give_up(self) -> None:
        """End the request before the next step, unless it has ended. From any thread."""
        if self._answer is not None and not self._is_over:
            self._worker.cancel(self._answer.request)
        self._is_over = True

    def __del__(self) -> None:
        self.give_up()

    async def _start(self) -> None:
        assert self._make_answer is not None
        answer = await self._make_answer()
        self._make_answer = None  # which holds the prompt
        answer.request.priority = self._priority
        loop, chunks = asyncio.get_running_loop(), self._chunks  # and not this object, which may be left meanwhile
        try:
            self._worker.submit(answer, lambda chunk: loop.call_soon_threadsafe(chunks.put_nowait, chunk))
        except BaseException:
            answer.request.close()
            raise
        self._answer = answer
        if self._is_over:  # given up meanwhile
            self._worker.cancel(answer.request)
