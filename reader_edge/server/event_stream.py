"""Server-sent events and JSON lines, with heartbeats; they end when the client leaves, as does work it waits for."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from reader_edge.server.api_error import ApiError, api_error
from reader_edge.server.completion import Json
from reader_edge.server.request_log import RequestNote, note_of

Result = TypeVar("Result")
HEARTBEAT_S = 2.0  # without a word, after which a client hears that its answer is on its way


class ClientDisconnectedError(Exception):
    """The client has gone."""


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of some work, cancelled when the client leaves before. Raises ClientDisconnectedError then."""
    worker, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_until_disconnected(receive))
    try:
        await asyncio.wait((worker, leaving), return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientDisconnectedError
    finally:
        worker.cancel()
        leaving.cancel()
        await asyncio.gather(worker, leaving, return_exceptions=True)


class EventStream(Response):
    """JSON objects as server-sent events; an error among them is the last.

    first: the first of them, which may still be awaited. While there is nothing to send, comments are sent.
    """

    media_type = "text/event-stream"

    def __init__(
        self, first: "asyncio.Future[Json]", events: AsyncGenerator[Json, None], headers: Mapping[str, str]
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", **headers})
        del self.headers["content-length"]
        self._first = first
        self._events = events
        self._sent_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        note = note_of(scope)
        try:
            await unless_disconnected(receive, self._send_all(send, note))
        except ClientDisconnectedError:
            note.leave()
        finally:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
            await self._events.aclose()

    async def _send_all(self, send: Send, note: RequestNote) -> None:
        num_sent = 0
        beating = asyncio.ensure_future(self._beat(send, note))
        try:
            await self._send(send, self._event(await self._first))
            num_sent = 1
            async for event in self._events:
                await self._send(send, self._event(event))
                num_sent += 1
            end = self._end
        except ClientDisconnectedError:
            raise
        except Exception as error:
            failure = api_error(error)
            failure.note(note)
            end = self._event(self._failure(failure, num_sent))
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        await self._send(send, end)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _beat(self, send: Send, note: RequestNote) -> None:
        """Send a heartbeat wherever nothing was sent for a while, so that clients and proxies wait on."""
        while True:
            left_s = self._sent_s + HEARTBEAT_S - time.monotonic()
            if left_s > 0:
                await asyncio.sleep(left_s)
            else:
                await self._send(send, self._heartbeat({} if note.progress is None else note.progress(), note))

    async def _send(self, send: Send, body: bytes) -> None:
        """Raises ClientDisconnectedError where nobody reads."""
        self._sent_s = time.monotonic()
        try:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        except OSError as error:
            raise ClientDisconnectedError from error

    @property
    def _end(self) -> bytes:
        """What marks the end."""
        return b"data: [DONE]\n\n"

    def _failure(self, error: ApiError, number: int) -> Json:
        """number: of events before."""
        return error.fields

    def _event(self, fields: Json) -> bytes:
        return f"data: {json.dumps(fields)}\n\n".encode()

    def _heartbeat(self, progress: Json, note: RequestNote) -> bytes:
        """What no client takes for a part of the answer. progress: what the answer waits for, if anything."""
        return f": {json.dumps(progress)}\n\n".encode() if progress else b":\n\n"


class NamedEventStream(EventStream):
    """Events that each tell their "type" beside them; none marks the end."""

    @property
    def _end(self) -> bytes:
        return b""

    def _failure(self, error: ApiError, number: int) -> Json:
        """OpenAI's client looks for an "error", its types for the rest."""
        fields = {"message": str(error), "param": error.param, "code": error.code}
        return error.fields | {"type": "error", **fields, "sequence_number": number}

    def _event(self, fields: Json) -> bytes:
        return f"event: {fields['type']}\n".encode() + super()._event(fields)


class LineStream(EventStream):
    """JSON objects, one a line, as Ollama streams them; an error among them is the last.

    empty: a part of an answer that says nothing: lines have no comments.
    """

    media_type = "application/x-ndjson"
    empty: ClassVar[Json]

    @property
    def _end(self) -> bytes:
        return b""

    def _failure(self, error: ApiError, number: int) -> Json:
        return {"error": str(error)}

    def _event(self, fields: Json) -> bytes:
        return f"{json.dumps(fields)}\n".encode()

    def _heartbeat(self, progress: Json, note: RequestNote) -> bytes:
        created_at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return self._event({"model": note.model, "created_at": created_at} | self.empty | {"done": False} | progress)


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
