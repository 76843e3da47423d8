"""The engine for event loops: many answers at once, decoded by one thread."""

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from reader_edge_runtime.answer import Answer, GenerationChunk, GenerationResult
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.call_options import GenerationOptions, given_config
from reader_edge_runtime.config import GenerationConfig, ServingConfig
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.drafting.remote_drafts import RemoteDrafts
from reader_edge_runtime.embeddings import LastToken, given_list
from reader_edge_runtime.engine import Engine
from reader_edge_runtime.errors import BusyError, ConfigError
from reader_edge_runtime.serving.worker import Worker
from reader_edge_runtime.stats import GenerationStats
from reader_edge_runtime.text.conversation import Encodable
from reader_edge_runtime.text.image_parts import holds_images
from reader_edge_runtime.untrusted.user_input import short_repr


class Preparation:
    """Grammars are understood one after the other, in a thread of their own: hostile ones delay grammars alone.

    Headers of images are read in two threads of their own, so that texts do not wait for them.
    max_grammars: answers with grammars that may be prepared, wait or run, each of which has a process.
    """

    def __init__(self, engine: Engine, max_grammars: int) -> None:
        self._engine = engine
        self._max_grammars = max_grammars
        self._threads = ThreadPoolExecutor(1, "reader-edge-grammars")
        self._reading = ThreadPoolExecutor(2, "reader-edge-image-headers")
        self._lock = threading.Lock()
        self._num_pending = 0
        self._held: weakref.WeakSet[Request] = weakref.WeakSet()

    async def answer(
        self, prompt: Encodable, config: GenerationConfig | None, device: RemoteDrafts | None = None
    ) -> Answer:
        """Raises what `Engine.answer` does, and BusyError for more grammars than may be."""
        make = partial(self._engine.answer, prompt, config, device)
        if not isinstance(config, GenerationConfig) or config.grammar is None:
            if not holds_images(prompt):
                return await asyncio.to_thread(make)
            return await asyncio.wrap_future(self._reading.submit(make))
        with self._lock:
            num = self._num_pending + sum(not request.is_closed for request in self._held)
            if num >= self._max_grammars:
                raise BusyError(f"{num} answers with grammars run or wait already: try again later.")
            self._num_pending += 1
        future = self._threads.submit(make)
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
        return [] if request is None else request.prompt_token_ids

    @property
    def num_read_tokens(self) -> int:
        """Tokens of the prompt that the model has read, those that were cached included."""
        return 0 if self._answer is None else self._answer.request.num_read_tokens

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


_GRAMMARS_A_SLOT = 2  # that may run or wait, each with a process of its own
_LEFT_WAIT_S = 2.0  # for the thread of an engine that was left without `close`


class AsyncEngine:
    """An engine that many tasks use at once, of any event loop in any thread. Each answer is what it would be alone.

        async with AsyncEngine(Engine.load("models/demo/package")) as engine:
            async for chunk in engine.stream("# tar"):
                print(chunk.text, end="")

    engine: the engine that answers; other threads may keep using it. Load it before an event loop runs: that takes a
        while.
    max_grammars: answers with grammars that may run or wait together; BusyError for more.
    Raises ConfigError for an engine or a config of another kind.
    """

    def __init__(self, engine: Engine, config: ServingConfig | None = None) -> None:
        if not isinstance(engine, Engine):
            raise ConfigError(f"engine is {short_repr(engine)}, but must be an Engine, as Engine.load gives it.")
        serving = given_config(config, ServingConfig, "config")
        self.engine = engine
        self._worker = Worker(engine, serving)
        self.max_grammars = _GRAMMARS_A_SLOT * engine.decoder.config.max_batch
        self._preparation = Preparation(engine, self.max_grammars)
        # The garbage collector may run this in a thread that holds what the worker waits for.
        weakref.finalize(self, self._worker.close, True, _LEFT_WAIT_S)

    @property
    def context_length(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self.engine.context_length

    @property
    def num_running(self) -> int:
        """Requests whose answers are being decoded."""
        return self._worker.num_running

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a slot, or for the rest of their prompt to be scored."""
        return self._worker.num_waiting

    def stream(
        self,
        prompt: Encodable,
        config: GenerationConfig | None = None,
        priority: int = 0,
        device: RemoteDrafts | None = None,
        **options: Unpack[GenerationOptions],
    ) -> AnswerStream:
        """Answer one prompt piece by piece; see AnswerStream. options: as of `Engine.generate`.

        priority: the waiting request with the lowest goes next, among equals the first that came. Raises ConfigError if
        it is not a whole number.
        device: what a remote client of a server drafts for it, and whether the answer waits for that.
        """
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise ConfigError(f"priority is {short_repr(priority)}, but must be a whole number.")
        if options:
            prompt, config = self.engine.with_options(prompt, config, options)
        return AnswerStream(self._worker, partial(self._preparation.answer, prompt, config, device), priority)

    async def generate(
        self,
        prompt: Encodable,
        config: GenerationConfig | None = None,
        priority: int = 0,
        **options: Unpack[GenerationOptions],
    ) -> GenerationResult:
        """Answer one prompt. Arguments and errors: see `stream`."""
        stream = self.stream(prompt, config, priority, None, **options)
        return GenerationResult.of_chunks([chunk async for chunk in stream])

    async def embed(self, texts: Iterable[Encodable], dimensions: int | None = None) -> Float32Array:
        """Embeddings of texts, float32 (B, E), beside running answers. Arguments and errors: see `Engine.embed`."""
        embedder = self.engine.embedder(dimensions)
        readers = await self._read(given_list(texts, "texts"), embedder.reader)
        return embedder.vectors(readers)

    async def rerank(self, query: str, documents: Iterable[str], instruction: str | None = None) -> list[float]:
        """How relevant each document is, from 0 to 1. Arguments and errors: see `Engine.rerank`."""
        reranker = self.engine.reranker()
        texts = given_list(documents, "documents")
        prompts = await asyncio.to_thread(lambda: [reranker.prompt(query, each, instruction) for each in texts])
        return [reranker.score(each) for each in await self._read(prompts, reranker.reader)]

    async def _read(self, prompts: Sequence[Encodable], reader: Callable[[], LastToken]) -> list[LastToken]:
        """What requests keep of their prompts, which go in so many at once as run together."""
        readers, size = [reader() for _ in prompts], self.engine.decoder.config.max_batch
        paired = list(zip(prompts, readers, strict=True))
        for start in range(0, len(paired), size):
            await asyncio.gather(*(self.generate(prompt, each.config) for prompt, each in paired[start : start + size]))
        return readers

    async def close(self, cancels: bool = False) -> None:
        """Take no more requests; wait for running ones, or cancel them. Further calls do nothing.

        What is to go to a prefix cache is written.
        """
        await asyncio.to_thread(self._worker.close, cancels)
        await asyncio.to_thread(self.engine.flush_prefixes)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(cancels=error is not None)
