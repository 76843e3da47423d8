"""The server as an ASGI application."""

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from reader_edge.remote.frames import DRAFT_PATH
from reader_edge.server.api_error import error_response
from reader_edge.server.authentication import Guard
from reader_edge.server.draft_endpoint import refuse_socket
from reader_edge.server.endpoints import EVERY_ENDPOINT, refusing_routes
from reader_edge.server.json_body import BodyBudget
from reader_edge.server.model_endpoint import ModelEndpoint
from reader_edge.server.model_lists import ModelLists
from reader_edge.server.model_pool import ModelPool
from reader_edge.server.ollama.models import OllamaModels
from reader_edge.server.openapi import openapi_document
from reader_edge.server.request_log import RequestLog
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine

_PAGE_FILE = Path(__file__).with_name("page.html")


def make_app(served: AsyncEngine | ModelPool, settings: ServerSettings) -> Starlette:
    """The application that serves an engine, or the models of a pool, and closes them when it is shut down.

    What names no model is of the first: devices' drafts, and the page's first choice.
    """
    pool = served if isinstance(served, ModelPool) else ModelPool.of(served, settings)
    document = openapi_document(settings, [model.package.manifest for model in pool.models], pool.names)

    async def openapi(request: Request) -> Response:
        return JSONResponse(document)

    async def health(request: Request) -> Response:
        loaded = [model.loaded.engine.engine.draft_permission for model in pool.models if model.loaded is not None]
        limited = next((each for each in loaded if each.scope != "all"), None)
        plain = {} if limited is None else {"drafts": limited.scope, "reason": limited.reason}
        return JSONResponse({"status": "ok"} | plain)

    async def show_metrics(request: Request) -> Response:
        return Response(pool.metrics.text(), media_type="text/plain; version=0.0.4")

    async def draft(websocket: WebSocket) -> None:
        try:
            loaded = await pool.take(pool.first)
        except Exception as error:
            await refuse_socket(websocket, error)
            return
        pool.give_back(pool.first)  # which answers keep loaded, and no device that has none
        await loaded.drafts(websocket)

    async def page(request: Request) -> Response:
        return await (await asyncio.to_thread(make_page)).html(request)

    @cache
    def make_page() -> Page:
        is_drawn = bool(pool.first.sampling.get("temperature"))
        return Page(pool.first.tokenizer.has_chat_template, is_drawn)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        pool.begin()
        yield
        await pool.close(cancels=True)

    routes = [
        *(Route(path, ModelEndpoint(path, pool, settings), methods=["POST"]) for path in EVERY_ENDPOINT),
        *OllamaModels(pool, settings).routes,
        *ModelLists(pool, settings).routes,
        *refusing_routes(),
        *pool.responses.routes,
        WebSocketRoute(DRAFT_PATH, draft),
        Route("/openapi.json", openapi),
        Route("/health", health),
        Route("/", page),
        Route("/metrics", show_metrics),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(RequestLog, settings.logs_prompts),
            Middleware(Guard, settings.api_keys),
            Middleware(BodyBudget, settings.max_bodies_bytes),
        ],
        exception_handlers={HTTPException: error_response, Exception: error_response},
        lifespan=lifespan,
    )
    app.state.pool = pool
    app.router.redirect_slashes = False  # to where the client's Host header says
    return app


class Page:
    """A route's handler. is_chat: whether the model has a chat template; else texts are continued. is_drawn: whether it
    recommends to draw tokens, so that a chat leaves its temperature open; else it begins greedily."""

    def __init__(self, is_chat: bool, is_drawn: bool) -> None:
        text = _PAGE_FILE.read_text(encoding="utf-8").replace('data-form="FORM"', f'data-form="{_form(is_chat)}"')
        self._text = text.replace('value="TEMPERATURE"', f'value="{"" if is_drawn else "0"}"')
        self._headers = {
            "Content-Security-Policy": _policy(self._text),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }

    async def html(self, request: Request) -> Response:
        return Response(self._text, headers=self._headers, media_type="text/html")


def _form(is_chat: bool) -> str:
    return "chat" if is_chat else "text"


def _policy(text: str) -> str:
    """What a browser lets the page do: run its own script, in its own style, and ask its own server."""
    script, style = (_hash_of(kind, text) for kind in ("script", "style"))
    rules = (
        *("default-src 'none'", f"script-src {script}", f"style-src {style}", "connect-src 'self'"),
        *("img-src data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
    )
    return "; ".join(rules)


def _hash_of(kind: str, text: str) -> str:
    """The source expression that allows the page's one element of a kind, and no other."""
    (content,) = re.findall(f"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
