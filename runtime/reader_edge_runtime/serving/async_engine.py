"""The engine for event loops: many answers at once, decoded by one thread."""

import asyncio
import weakref
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from reader_edge_runtime.answer import GenerationResult
from reader_edge_runtime.config import GenerationConfig, ServingConfig
from reader_edge_runtime.drafting.device_drafts import DeviceDrafts
from reader_edge_runtime.engine import Engine
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.given_arguments import GenerationOptions, given_config
from reader_edge_runtime.serving.answer_stream import AnswerStream
from reader_edge_runtime.serving.preparation import Preparation
from reader_edge_runtime.serving.worker import Worker
from reader_edge_runtime.text.conversation import Encodable
from reader_edge_runtime.untrusted.user_input import short_repr

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
        device: DeviceDrafts | None = None,
        **options: Unpack[GenerationOptions],
    ) -> AnswerStream:
        """Answer one prompt piece by piece; see AnswerStream. options: as of `Engine.generate`.

        priority: the waiting request with the lowest goes next, among equals the first that came. Raises ConfigError if
        it is not a whole number.
        device: what a device in front of a server drafts for it, and whether the answer waits for that.
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

    async def close(self, cancels: bool = False) -> None:
        """Take no more requests; wait for running ones, or cancel them. Further calls do nothing."""
        await asyncio.to_thread(self._worker.close, cancels)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(cancels=error is not None)
