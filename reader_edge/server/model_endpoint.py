"""The ASGI application of one URL path: has the model that a request names loaded, and hands it the request."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

from msgspec import structs
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from reader_edge.server import event_stream
from reader_edge.server.api_error import ApiError, error_response
from reader_edge.server.completion import Json
from reader_edge.server.endpoints import EVERY_ENDPOINT
from reader_edge.server.event_stream import ClientDisconnectedError, unless_disconnected
from reader_edge.server.model_pool import ModelPool
from reader_edge.server.request_log import LEFT_STATUS, note_of
from reader_edge.server.served_model import LoadedModel, ServedModel
from reader_edge.server.settings import ServerSettings


class ModelEndpoint:
    """An ASGI application. path: of `EVERY_ENDPOINT`, of which each model has one."""

    def __init__(self, path: str, pool: ModelPool, settings: ServerSettings) -> None:
        self._path = path
        self._kind = kind = EVERY_ENDPOINT[path]
        self._pool = pool
        self._settings = settings
        defaults = [each.default for each in structs.fields(kind.body_type) if each.name == "stream"]
        self._is_streamed = defaults[0] if defaults else None  # None: there are no streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        async with AsyncExitStack() as held:
            try:
                response = await self._response(request, held)
            except (ClientDisconnectedError, ClientDisconnect):
                note_of(scope).leave()
                response = Response(status_code=LEFT_STATUS)
            except Exception as error:
                response = await error_response(request, error)
            self._pool.metrics.count_request(self._path, response.status_code)
            await response(scope, receive, send)

    async def _response(self, request: Request, held: AsyncExitStack) -> Response:
        """A model's response. A stream begins before the model is there if that takes long. held: lets it go again."""
        values = await self._kind.read_values(request, self._settings)
        fields = values if isinstance(values, dict) else {}
        name = fields.get("model")
        model = self._pool.find(name if isinstance(name, str) else "")
        if model.loaded is None:
            await asyncio.to_thread(self._kind.check_unloaded, values, model, self._settings)
        keep_s = None if self._pool.is_fixed else self._kind.keep_s(fields)
        taking = asyncio.ensure_future(self._taken(model))
        held.push_async_callback(self._let_go, model, taking, keep_s)
        is_streamed = self._is_streamed is not None and fields.get("stream", self._is_streamed) is True
        wait = asyncio.wait((taking,), timeout=event_stream.HEARTBEAT_S if is_streamed else None)
        await unless_disconnected(request.receive, wait)
        if taking.done():
            return await taking.result().endpoints[self._path].respond(request, values)
        events = self._late_events(request, values, taking)
        note_of(request.scope).progress = lambda: {"model_loading": model.name}
        return self._kind.stream_type(asyncio.ensure_future(anext(events)), events, {})

    async def _taken(self, model: ServedModel) -> LoadedModel:
        max_s = self._settings.max_answer_s
        try:
            async with asyncio.timeout(max_s):
                return await self._pool.acquire(model)
        except TimeoutError:
            sentence = f"{model.name!r} could not be loaded within {max_s:g} seconds: try again later."
            raise ApiError(504, sentence, code="timeout") from None

    async def _let_go(self, model: ServedModel, taking: "asyncio.Future[LoadedModel]", keep_s: float | None) -> None:
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        if not taking.cancelled() and taking.exception() is None:
            self._pool.release(model, keep_s)

    async def _late_events(
        self, request: Request, values: object, taking: "asyncio.Future[LoadedModel]"
    ) -> AsyncGenerator[Json, None]:
        loaded = await taking
        async with aclosing(loaded.endpoints[self._path].events(request, values)) as events:
            async for event in events:
                yield event
