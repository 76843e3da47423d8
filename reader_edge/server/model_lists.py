"""Which models there are, in the words of OpenAI, LM Studio and llama.cpp's server, and requests to load and unload."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import reader_edge
from reader_edge.server.api_error import ApiError, Handler, agreed, api_error, interface_of, no_model, refusing
from reader_edge.server.completion import Json
from reader_edge.server.ignored_fields import LeftOut
from reader_edge.server.json_body import read_values
from reader_edge.server.model_pool import ModelPool
from reader_edge.server.schema import JsonObject, decode
from reader_edge.server.served_model import ServedModel
from reader_edge.server.settings import ServerSettings

# Of llama.cpp's server, of others that took these paths, and of LM Studio.
_LOAD = ("/models/load", "/v1/models/load", "/api/v1/models/load")
_UNLOAD = ("/models/unload", "/v1/models/unload", "/api/v1/models/unload")
_DOWNLOAD = "/api/v1/models/download"
_LOADING_OPTIONS = """
    context_length echo_load_config eval_batch_size flash_attention num_experts offload_kv_cache_to_gpu
"""


class LoadBody(JsonObject, ignored=_LOADING_OPTIONS):
    """What asks for a model to be loaded; every model has its whole context."""

    model: str


class UnloadBody(JsonObject):
    """What asks for a model to be unloaded. instance_id: LM Studio's word for it."""

    model: str = ""
    instance_id: str = ""

    @property
    def requested(self) -> str:
        """The model. Raises ApiError."""
        return agreed("model", self.model or None, "instance_id", self.instance_id or None) or ""


Body = TypeVar("Body", LoadBody, UnloadBody)


class ModelLists:
    """The routes of one server."""

    def __init__(self, pool: ModelPool, settings: ServerSettings) -> None:
        self._pool = pool
        self._settings = settings
        self._since = int(time.time())

    @property
    def routes(self) -> list[Route]:
        return [
            *self._loading_routes(),
            Route("/props", self._props),
            Route("/v1/models", self._models_handler(self._of_openai)),
            Route("/v1/models/{name:path}", self._models_handler(self._of_openai)),
            Route("/api/v1/models", self._studio_models),
            Route("/api/v0/models", self._models_handler(_of_studio)),
            Route("/api/v0/models/{name:path}", self._models_handler(_of_studio)),
        ]

    def _loading_routes(self) -> list[Route]:
        if self._pool.is_fixed:
            name = self._pool.first.name
            loaded = f"{name!r} is loaded as long as the server runs, and no other model can be: ask it right away."
            return [Route(path, refusing(400, loaded), methods=["POST"]) for path in (*_LOAD, *_UNLOAD, _DOWNLOAD)]
        fetched = "This server fetches no models: use `reader-edge pull`, and start it with the model's name."
        return [
            *(Route(path, self._load, methods=["POST"]) for path in _LOAD),
            *(Route(path, self._unload, methods=["POST"]) for path in _UNLOAD),
            Route(_DOWNLOAD, refusing(400, fetched), methods=["POST"]),
        ]

    async def _decoded(self, request: Request, kind: type[Body]) -> Body:
        """Raises ApiError."""
        return decode(await read_values(request, self._settings), kind, LeftOut(self._settings.refused_fields))

    async def _load(self, request: Request) -> Response:
        start = time.monotonic()
        try:
            model = self._pool.find((await self._decoded(request, LoadBody)).model)
            await self._pool.load(model)
        except Exception as error:
            return api_error(error).response()
        load_s = round(time.monotonic() - start, 3)
        answer = {"type": "llm", "instance_id": model.name, "load_time_seconds": load_s, "status": "loaded"}
        return JSONResponse({"success": True} | answer)

    async def _unload(self, request: Request) -> Response:
        try:
            model = self._pool.find((await self._decoded(request, UnloadBody)).requested)
            if model.loaded is None:
                raise ApiError(404, f"{model.name!r} is not loaded.", "model", "model_not_loaded")
            await self._pool.unload(model)
        except Exception as error:
            return api_error(error).response()
        return JSONResponse({"success": True, "instance_id": model.name})

    async def _props(self, request: Request) -> Response:
        """A model in the words of llama.cpp's server, the first one where none is named; no path of this machine."""
        try:
            name = request.query_params.get("model")
            model = self._pool.find(name) if name else self._pool.first
        except ApiError as error:
            return error.response()
        if name and self._pool.is_fixed and not self._pool.settings_of(model).is_served(name):
            return no_model(name, *self._pool.settings_of(model).names).response()
        loaded = model.loaded
        tokenizer = await asyncio.to_thread(lambda: model.tokenizer)
        return JSONResponse(
            {
                "default_generation_settings": {
                    "n_ctx": model.package.manifest.max_context,
                    "params": dict(model.sampling) | {"n_predict": self._settings.max_tokens},
                },
                "total_slots": 0 if loaded is None else loaded.engine.engine.decoder.config.max_batch,
                **{"model_path": model.name, "model_alias": model.name, "chat_template": tokenizer.chat_source},
                **{"build_info": f"reader-edge {reader_edge.__version__}", "is_sleeping": loaded is None},
                "modalities": {"vision": model.package.manifest.images is not None, "audio": False},
            }
        )

    def _models_handler(self, describe: Callable[[ServedModel], Json]) -> Handler:
        """The handler of the list of models, and of a model by name."""

        async def models(request: Request) -> Response:
            interface, requested = interface_of(request), request.path_params.get("name")
            shown = self._of_anthropic if interface == "anthropic" else describe
            if requested is None:
                data = [each for model in self._pool.models for each in (shown(model), *_adapters(model, shown(model)))]
                page = {"first_id": data[0]["id"], "last_id": data[-1]["id"], "has_more": False}
                return JSONResponse((page if interface == "anthropic" else {"object": "list"}) | {"data": data})
            try:
                model = self._pool.find(requested)
            except ApiError as error:
                return error.response(interface)
            if self._pool.is_fixed and not self._pool.settings_of(model).is_served(requested):
                return no_model(requested, *self._pool.settings_of(model).names).response(interface)
            adapter = self._pool.settings_of(model).adapter_named(requested)
            return JSONResponse(shown(model) if adapter is None else _adapter(adapter, shown(model)))

        return models

    def _of_openai(self, model: ServedModel) -> Json:
        length = model.package.manifest.max_context
        return {
            **{"id": model.name, "object": "model", "created": self._since, "owned_by": "reader-edge"},
            **{"max_model_len": length, "context_length": length, "status": {"value": model.state}},
        }

    def _of_anthropic(self, model: ServedModel) -> Json:
        return {
            **{"type": "model", "id": model.name, "display_name": model.name, "lifecycle": "active"},
            "created_at": datetime.fromtimestamp(self._since, UTC).isoformat(),
            **{"max_tokens": self._settings.max_tokens, "max_input_tokens": model.package.manifest.max_context},
        }

    async def _studio_models(self, request: Request) -> Response:
        return JSONResponse({"models": [_of_studio_1(each) for each in self._pool.models]})


def _adapters(model: ServedModel, described: Json) -> list[Json]:
    """A model's adapters, in the words in which it is described itself."""
    return [_adapter(name, described) for name in model.adapters]


def _adapter(name: str, described: Json) -> Json:
    named = {key: name for key in ("id", "display_name") if key in described}
    return described | named | {"parent": described["id"]}


def _of_studio(model: ServedModel) -> Json:
    manifest = model.package.manifest
    state = "not-loaded" if model.state == "unloaded" else model.state
    return {
        **{"id": model.name, "object": "model", "publisher": "reader-edge"},
        "type": "llm" if manifest.images is None else "vlm",
        **{"arch": manifest.architecture, "compatibility_type": "onnx", "state": state},
        **{"max_context_length": manifest.max_context, "context_length": manifest.max_context},
    }


def _of_studio_1(model: ServedModel) -> Json:
    name, manifest = model.name, model.package.manifest
    instance = {"id": name, "config": {"context_length": manifest.max_context}}
    return {
        **{"type": "llm", "publisher": "reader-edge", "key": name, "display_name": name, "format": None},
        "capabilities": {"vision": manifest.images is not None},
        **{"architecture": manifest.architecture, "quantization": None, "params_string": None},
        **{"max_context_length": manifest.max_context, "context_length": manifest.max_context},
        "loaded_instances": [] if model.loaded is None else [instance],
    }
