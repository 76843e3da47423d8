"""An answer that outlives the connection it was asked over, for a while: its device takes it up where it was."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from msgspec import convert

from reader_edge.remote.frames import Deviation, End, Ending, FromServer, Started, Tokens
from reader_edge.server.api_error import ApiError
from reader_edge.server.metrics import Metrics
from reader_edge_runtime.answer import GenerationChunk
from reader_edge_runtime.drafting.device_drafts import DeviceDrafts
from reader_edge_runtime.errors import ClosedError
from reader_edge_runtime.serving.answer_stream import AnswerStream
from reader_edge_runtime.stats import GenerationStats

Send = Callable[[FromServer], Awaitable[None]]


class KeptAnswer:
    """Collects an answer as it comes, whoever reads it.

    device: what is drafted for it. token_ids: those that came. reader: the task that sends it; None where its device
    is away. tells_prompt: whether the device does not know the prompt's tokens.
    """

    def __init__(
        self, stream: AnswerStream, device: DeviceDrafts, tells_prompt: bool, max_s: float, metrics: Metrics
    ) -> None:
        self.device = device
        self.token_ids: list[int] = []
        self.reader: asyncio.Task[None] | None = None
        self.tells_prompt = tells_prompt
        self._stream = stream
        self._max_s = max_s
        self._metrics = metrics
        self._last: GenerationChunk | None = None
        self._error: Exception | None = None
        self._news = asyncio.Event()
        self._collector = asyncio.ensure_future(self._collect())

    @property
    def is_begun(self) -> bool:
        """Whether there is something of it to come back for."""
        return bool(self.token_ids) or self._last is not None

    def usage(self) -> dict[str, object]:
        """Tokens counted so far, in OpenAI's words."""
        stats = self._stream.stats or GenerationStats()
        accepted = {"accepted_prediction_tokens": stats.num_accepted_tokens}
        counts = {"prompt_tokens": stats.num_prompt_tokens, "completion_tokens": stats.num_tokens}
        return counts | {"completion_tokens_details": accepted}

    def give_up(self) -> None:
        """Nobody will ask for the rest."""
        self._stream.give_up()
        self._collector.cancel()

    async def send(self, send: Send, num_sent: int) -> None:
        """Send all tokens behind the first ones, as they come, and how it ended. Raises what it failed of."""
        is_started = False
        while True:
            self._news.clear()
            if not is_started and self._stream.prompt_token_ids:
                prompt = list(self._stream.prompt_token_ids) if self.tells_prompt else []
                await send(Started(prompt))
                is_started = True
            if new := self.token_ids[num_sent:]:
                await send(Tokens(num_sent, new))
                num_sent += len(new)
            elif self._error is not None:
                raise self._error
            elif self._last is not None:
                await send(self.end(cast(Ending, self._last.finish_reason)))
                return
            else:
                await self._news.wait()

    def end(self, finish_reason: Ending) -> End:
        """The frame that ends it."""
        deviation = self._last.deviation if self._last is not None else {}
        stats = self._stream.stats or GenerationStats()
        return End(finish_reason, stats, convert(deviation, Deviation) if deviation else None)

    async def _collect(self) -> None:
        try:
            async with asyncio.timeout(self._max_s):
                async for chunk in self._stream:
                    self.token_ids += chunk.token_ids
                    if chunk.finish_reason == "cancelled":
                        raise ClosedError("The engine was closed during an answer.")
                    if chunk.finish_reason is not None and chunk.error is None:
                        self._last = chunk
                    self._news.set()
        except TimeoutError:
            limit = f"The answer takes longer than {self._max_s:g} seconds: ask for fewer tokens."
            self._error = ApiError(504, limit, code="timeout")
        except Exception as error:
            self._error = error
        finally:
            self._news.set()
            if self._stream.stats is not None:
                self._metrics.count_answer(self._stream.stats)
