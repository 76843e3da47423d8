"""Adapters that come and go while the server runs, requested as of vLLM's server.

Paths come from strangers: only what lies below the folder that the server was started with is loaded. Names that it was
started with keep their adapters.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, TypeVar

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from reader_edge.server.api_error import ApiError, api_error, no_model, shown_names
from reader_edge.server.ignored_fields import LeftOut
from reader_edge.server.json_body import read_values
from reader_edge.server.model_pool import ModelPool
from reader_edge.server.schema import JsonObject, decode
from reader_edge.server.served_model import ServedModel
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import Engine
from reader_edge_runtime.adapters.adapter_set import check_adapter_name
from reader_edge_runtime.errors import AdapterError, ConfigError, GgufError
from reader_edge_runtime.untrusted.user_input import short_repr

_Name = Annotated[str, Meta(min_length=1, max_length=100)]
_STAYS = "is of an adapter that the server was started with, which stays"
_LOG = logging.getLogger(__name__)


class LoadAdapterBody(JsonObject, ignored="is_3d_lora_weight"):
    """lora_path: below the server's folder of adapters; empty for one that the server was started with, which is read
    again. load_inplace: in place of one that is loaded by this name."""

    lora_name: _Name
    lora_path: Annotated[str, Meta(max_length=4096)] = ""
    load_inplace: bool = False
    model: str = ""


class UnloadAdapterBody(JsonObject, ignored="lora_int_id"):
    """The adapter that is to go."""

    lora_name: _Name
    model: str = ""


Body = TypeVar("Body", LoadAdapterBody, UnloadAdapterBody)


class AdapterRoutes:
    """The routes of one server."""

    def __init__(self, pool: ModelPool, settings: ServerSettings) -> None:
        self._pool = pool
        self._settings = settings
        self._loading: set[str] = set()

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/v1/load_lora_adapter", self._load, methods=["POST"]),
            Route("/v1/unload_lora_adapter", self._unload, methods=["POST"]),
        ]

    async def _load(self, request: Request) -> Response:
        try:
            body = await self._decoded(request, LoadAdapterBody)
            model, name = self._model(body), body.lora_name
            path = self._place(name, body.lora_path)
            check_adapter_name(name)
            self._check_free(name, model, body.load_inplace)
            self._loading.add(name)
            try:
                await self._with_engine(model, lambda engine: _load(engine, name, path, body.lora_path or name))
            finally:
                self._loading.remove(name)
        except Exception as error:
            return api_error(error).response()
        _LOG.info("Loaded the adapter '%s'.", name)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, request: Request) -> Response:
        try:
            body = await self._decoded(request, UnloadAdapterBody)
            model, name = self._model(body), body.lora_name
            if name not in model.adapters:
                since = [each for each in model.adapters if each not in self._settings.adapter_paths]
                remedy = f"name {shown_names(since)}" if since else "none was loaded since the start"
                raise ApiError(404, f"There is no adapter {name!r:.100}: {remedy}.", "lora_name", "model_not_found")
            if name in self._settings.adapter_paths:
                raise ApiError(400, f"{name!r} {_STAYS}: drop one that was loaded since.", "lora_name")
            await self._with_engine(model, lambda engine: engine.drop_adapter(name))
        except Exception as error:
            return api_error(error).response()
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")

    async def _decoded(self, request: Request, kind: type[Body]) -> Body:
        """Raises ApiError."""
        return decode(await read_values(request, self._settings), kind, LeftOut(self._settings.refused_fields))

    def _model(self, body: LoadAdapterBody | UnloadAdapterBody) -> ServedModel:
        """The model that an adapter is for; the only one where none is named. Raises ApiError."""
        found = self._pool.find(body.model) if body.model or len(self._pool.models) > 1 else self._pool.first
        if body.model and not (settings := self._pool.settings_of(found)).is_served(body.model):
            raise no_model(body.model, *settings.names)
        return found

    def _place(self, name: str, given: str) -> Path:
        """Where an adapter lies that a stranger asks for. Raises ApiError."""
        own, folder = self._settings.adapter_paths.get(name), self._settings.adapters_folder
        if own is not None and given not in ("", str(own)):
            raise ApiError(400, f"{name!r} {_STAYS}: choose another name.", "lora_name")
        if own is not None:
            return own.resolve()  # whole, as it is looked for in sentences of errors
        if folder is None or not given or "\0" in given:
            remedy = "give lora_path below its folder of adapters"
            if folder is None:
                remedy = "start it with --adapters-folder, and give lora_path below that folder"
            sentence = f"{name!r} is none of the adapters that this server was started with: {remedy}."
            raise ApiError(400, sentence, "lora_path")
        root = found = folder.resolve()
        with suppress(OSError, ValueError):  # of names that are too long, or none of files
            found = (root / given).resolve()
        if not found.is_relative_to(root) or found == root:
            raise ApiError(
                400, "'lora_path' leads out of the server's folder of adapters: give one below.", "lora_path"
            )
        return found

    def _check_free(self, name: str, model: ServedModel, is_in_place: bool) -> None:
        """Raise ApiError for a name of something else, or of an adapter that another request loads just now."""
        if name in self._loading:
            raise ApiError(400, f"{name!r} is being loaded for another request: wait for that.", "lora_name")
        meant = [each for each in self._pool.models if self._pool.settings_of(each).is_served(name)]
        if meant and not (meant == [model] and is_in_place and name in model.adapters):
            remedy = "choose another name" + (", or say load_inplace" if name in model.adapters else "")
            raise ApiError(400, f"{name!r} is there already: {remedy}.", "lora_name")

    async def _with_engine(self, model: ServedModel, change: Callable[[Engine], None]) -> None:
        loaded = await self._pool.acquire(model)
        try:
            await asyncio.to_thread(change, loaded.engine.engine)
        finally:
            self._pool.release(model)


def _load(engine: Engine, name: str, path: Path, given: str) -> None:
    """Raises ApiError, whose sentence has the path as it was given: where files lie is nothing to strangers."""
    try:
        engine.load_adapter(name, path)
    except (AdapterError, GgufError, ConfigError, OSError) as error:
        _LOG.warning("The adapter '%s' was refused: %s", name, error)
        sentence = str(error).replace(short_repr(str(path)), repr(given)).replace(str(path), given)
        raise ApiError(400, sentence, "lora_path", "adapter_refused") from None
