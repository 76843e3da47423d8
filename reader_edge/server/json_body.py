"""A request's body as JSON values, bounded in size and time, and with all others' together."""

import asyncio
import json

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reader_edge.server.api_error import ApiError
from reader_edge.server.request_log import note_of
from reader_edge.server.schema import without_gc
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime.untrusted.untrusted_json import finite

_MAX_EXACT = 2**53  # beyond it floats are whole by accident


async def read_values(request: Request, settings: ServerSettings, is_type_checked: bool = True) -> object:
    """Raises ApiError for what is not JSON, or larger or slower than allowed.

    is_type_checked: whether the type must be JSON's. Pages of other sites can send any other without the leave
    of a preflight request, which they do not get.
    """
    if (
        is_type_checked
        and request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json"
    ):
        raise ApiError(415, "The body must be JSON: send it with the header 'Content-Type: application/json'.")
    try:
        async with asyncio.timeout(settings.max_body_s):
            body = await _read(request, settings.max_body_bytes)
    except TimeoutError:
        raise ApiError(
            408, f"The body took longer than {settings.max_body_s:g} seconds to come: send it at once."
        ) from None
    try:
        values = load_json(body)
    except (ValueError, RecursionError):
        raise ApiError(400, "The body is not JSON: send an object.", code="invalid_json") from None
    note_of(request.scope).read(values)
    return values


def load_json(data: bytes) -> object:
    """What requests are read by. Raises ValueError, also for NaN and numbers beyond all, and RecursionError."""
    with without_gc():
        return json.loads(data, parse_float=_number, parse_constant=finite)


def _number(text: str) -> int | float:
    """2.0 is a whole number, which some languages write so."""
    value = finite(text)
    return int(value) if value.is_integer() and abs(value) < _MAX_EXACT else value


async def _read(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise ApiError(413, f"The body has more than the {max_bytes} bytes that it may have: shorten it.")
    return bytes(body)


class BodyBudget:
    """An ASGI application before another one. A body counts from its first part until its request is answered."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._num_left = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        num_held = 0

        async def receive_counted() -> Message:
            """Raises ApiError where a part finds no room."""
            nonlocal num_held
            message = await receive()
            num_bytes = len(message.get("body", b""))
            if num_bytes > self._num_left:
                raise ApiError(429, "Others' requests leave no room for this one: try again later.", code="queue_full")
            self._num_left -= num_bytes
            num_held += num_bytes
            return message

        try:
            await self._app(scope, receive_counted, send)
        finally:
            self._num_left += num_held
