"""Server-sent events and JSON lines, which end when the client leaves, and so does work it waits for."""

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from reader_edge.server.api_error import ApiError, api_error
from reader_edge.server.completion import Json
from reader_edge.server.request_log import RequestNote, note_of

Result = TypeVar("Result")
_END = b"data: [DONE]\n\n"


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
    """JSON objects as server-sent events, the first of which is there already; an error among them is the last.

    is_named: each tells its "type" beside it, and none marks the end.
    """

    media_type = "text/event-stream"

    def __init__(
        self, first: Json, events: AsyncGenerator[Json, None], headers: Mapping[str, str], is_named: bool = False
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", **headers})
        del self.headers["content-length"]
        self._first = first
        self._events = events
        self._is_named = is_named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        note = note_of(scope)
        try:
            await unless_disconnected(receive, self._send_all(send, note))
        except ClientDisconnectedError:
            note.leave()
        finally:
            await self._events.aclose()

    async def _send_all(self, send: Send, note: RequestNote) -> None:
        num_sent = 1
        await _send(send, self._event(self._first))
        try:
            async for event in self._events:
                await _send(send, self._event(event))
                num_sent += 1
            end = self._end
        except ClientDisconnectedError:
            raise
        except Exception as error:
            failure = api_error(error)
            failure.note(note)
            end = self._event(self._failure(failure, num_sent))
        await _send(send, end)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    @property
    def _end(self) -> bytes:
        """What marks the end."""
        return b"" if self._is_named else _END

    def _failure(self, error: ApiError, number: int) -> Json:
        """number: of events before. Of a named one OpenAI's client looks for an "error", its types for the rest."""
        fields = {"message": str(error), "param": error.param, "code": error.code}
        return error.fields | ({"type": "error", **fields, "sequence_number": number} if self._is_named else {})

    def _event(self, fields: Json) -> bytes:
        name = f"event: {fields['type']}\n" if self._is_named else ""
        return f"{name}data: {json.dumps(fields)}\n\n".encode()


class LineStream(EventStream):
    """JSON objects, one a line, as Ollama streams them; an error among them is the last."""

    media_type = "application/x-ndjson"

    @property
    def _end(self) -> bytes:
        return b""

    def _failure(self, error: ApiError, number: int) -> Json:
        return {"error": str(error)}

    def _event(self, fields: Json) -> bytes:
        return f"{json.dumps(fields)}\n".encode()


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, body: bytes) -> None:
    """Raises ClientDisconnectedError where nobody reads."""
    try:
        await send({"type": "http.response.body", "body": body, "more_body": True})
    except OSError as error:
        raise ClientDisconnectedError from error
