"""The server as an ASGI application."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import lru_cache, partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from reader_edge.remote.frames import DRAFT_PATH
from reader_edge.server.adapter_routes import AdapterRoutes
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
from reader_edge.server.page.chat_page import ChatPage
from reader_edge.server.request_log import RequestLog
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine


def make_app(served: AsyncEngine | ModelPool, settings: ServerSettings) -> Starlette:
    """The application that serves an engine, or the models of a pool, and closes them when it is shut down.

    What names no model is of the first: devices' drafts.
    """
    pool = served if isinstance(served, ModelPool) else ModelPool.of(served, settings)
    if any(model.package.manifest.images for model in pool.models):
        settings = settings.for_images
    manifests = [model.package.manifest for model in pool.models]
    document = lru_cache(1)(partial(openapi_document, settings, manifests))  # 20 ms, for the few who want it

    async def openapi(request: Request) -> Response:
        return JSONResponse(document((*pool.names, *(name for model in pool.models for name in model.adapters))))

    async def health(request: Request) -> Response:
        loaded = [model.loaded.engine.engine.draft_permission for model in pool.models if model.loaded is not None]
        limited = next((each for each in loaded if each.scope != "all"), None)
        plain = {} if limited is None else {"drafts": limited.scope, "reason": limited.reason}
        return JSONResponse({"status": "ok"} | plain)

    async def show_metrics(request: Request) -> Response:
        return Response(pool.metrics.text(), media_type="text/plain; version=0.0.4")

    async def draft(websocket: WebSocket) -> None:
        try:
            loaded = await pool.acquire(pool.first)
        except Exception as error:
            await refuse_socket(websocket, error)
            return
        pool.release(pool.first)  # which answers keep loaded, and no device that has none
        await loaded.drafts(websocket)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        pool.begin()
        yield
        await pool.close(cancels=True)

    routes = [
        *(Route(path, ModelEndpoint(path, pool, settings), methods=["POST"]) for path in EVERY_ENDPOINT),
        *OllamaModels(pool, settings).routes,
        *AdapterRoutes(pool, settings).routes,
        *ModelLists(pool, settings).routes,
        *refusing_routes(),
        *pool.responses.routes,
        WebSocketRoute(DRAFT_PATH, draft),
        Route("/openapi.json", openapi),
        Route("/health", health),
        Route("/", ChatPage().html),
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
