"""Answers that outlive their connection for a while, so that a remote client can resume its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from msgspec import convert

from reader_edge.remote.frames import ANSWER_GONE, Deviation, End, Ending, FromServer, Resume, Started, Tokens
from reader_edge.remote.settings import hash_of
from reader_edge.server.api_error import ApiError
from reader_edge.server.metrics import Metrics
from reader_edge_runtime.answer import GenerationChunk
from reader_edge_runtime.drafting.remote_drafts import RemoteDrafts
from reader_edge_runtime.errors import ClosedError
from reader_edge_runtime.serving.async_engine import AnswerStream
from reader_edge_runtime.stats import GenerationStats

MAX_KEPT = 64  # answers whose clients are away

Send = Callable[[FromServer], Awaitable[None]]


class ResumableAnswer:
    """Collects an answer as it comes, with or without readers.

    remote: what its client drafts for it. token_ids: those that came. reader: the task that sends it; None where the
    client is away. sends_prompt: whether the client does not know the prompt's tokens.
    """

    def __init__(
        self, stream: AnswerStream, remote: RemoteDrafts, sends_prompt: bool, max_s: float, metrics: Metrics
    ) -> None:
        self.remote = remote
        self.token_ids: list[int] = []
        self.reader: asyncio.Task[None] | None = None
        self.sends_prompt = sends_prompt
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
                prompt = list(self._stream.prompt_token_ids) if self.sends_prompt else []
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


def own_id(caller: str, answer_id: bytes) -> bytes:
    """An answer's id here, which a client of another caller, by whose key was sent, does not have."""
    return caller.encode() + answer_id


class ResumableAnswers:
    """keep_s: how long an answer waits for its client."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._answers: dict[bytes, ResumableAnswer] = {}
        self._away: dict[bytes, asyncio.TimerHandle] = {}  # the longest away first

    def __len__(self) -> int:
        return len(self._answers)

    def check_new(self, answer_id: bytes) -> None:
        """Raise ApiError for an id that an answer has already."""
        if answer_id in self._answers:
            raise ApiError(409, "There is an answer of this id already: take it up, or ask with another id.")

    def add(self, answer_id: bytes, answer: ResumableAnswer) -> None:
        self._answers[answer_id] = answer

    def taken_up(self, answer_id: bytes, resume: Resume) -> ResumableAnswer:
        """The answer that a device comes back to. Raises ApiError where there is none, or the texts differ."""
        answer = self._answers.get(answer_id)
        if answer is None:
            limit = f"it is kept for {self._keep_s:g} seconds, and not over a restart"
            raise ApiError(404, f"The answer is not here any more ({limit}): ask again.", code=ANSWER_GONE)
        known = answer.token_ids[: resume.num_tokens]
        if len(known) < resume.num_tokens or hash_of(known) != resume.text_hash:
            raise ApiError(409, "The device has another text of this answer than the server: ask again.")
        if (timer := self._away.pop(answer_id, None)) is not None:
            timer.cancel()
        if answer.reader is not None:  # over a connection that is lost, though nobody knows yet
            answer.reader.cancel()
        answer.remote.go_on()
        return answer

    def leave(self, answer_id: bytes) -> None:
        """Its client is away: the answer waits for it, or its end does; one that has not begun is dropped."""
        answer = self._answers.get(answer_id)
        if answer is None:
            return
        answer.remote.hold()
        if not answer.is_begun:
            self.drop(answer_id)
            return
        self._away[answer_id] = asyncio.get_running_loop().call_later(self._keep_s, self.drop, answer_id)
        if len(self._away) > MAX_KEPT:
            self.drop(next(iter(self._away)))

    def drop(self, answer_id: bytes) -> None:
        """Forget an answer, which ends if it runs."""
        if (timer := self._away.pop(answer_id, None)) is not None:
            timer.cancel()
        if (answer := self._answers.pop(answer_id, None)) is not None:
            answer.give_up()

    def close(self) -> None:
        """Forget all of them."""
        for answer_id in list(self._answers):
            self.drop(answer_id)
