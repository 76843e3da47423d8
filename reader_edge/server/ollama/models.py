"""Ollama's endpoints besides answers: version, models, and those that this server refuses."""

import asyncio
import json
import math
import re
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reader_edge import __version__
from reader_edge.server.api_error import ApiError, agreed, api_error, refusing
from reader_edge.server.completion import Json
from reader_edge.server.ignored_fields import LeftOut
from reader_edge.server.model_pool import ModelPool, not_loaded
from reader_edge.server.ollama.endpoints import check_ollama_model, now, read_ollama_values, utc
from reader_edge.server.schema import JsonObject, decode
from reader_edge.server.served_model import ServedModel
from reader_edge.server.settings import ServerSettings, tagged
from reader_edge_runtime.errors import ReaderEdgeError
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.text.tokenizer import Tokenizer

# The interface that is spoken here; some clients ask for a version of Ollama that has tools and schemas.
_OLLAMA_VERSION = "0.12.6"
_NEVER = "2318-01-01T00:00:00Z"  # when the model is unloaded: Ollama tells such a date for one that stays
_NO_CHANGES = (
    "This server changes nothing of its models: use `reader-edge pull`, `export`, `rm` and `serve` on its command line."
)
_SIZE = re.compile(r"(?<![a-z0-9.])\d+(\.\d+)?[mb](?![a-z0-9])", re.IGNORECASE)
_TYPE = re.compile(r"(?<![A-Z0-9])I?Q\d_(K_[SML]|K_XL|[0-9A-Z]+)(?![A-Z0-9])")


class _ModelBody(JsonObject):
    """name: an older word for the model."""

    model: str = ""
    name: str = ""

    @property
    def requested(self) -> str:
        """The model. Raises ApiError."""
        return agreed("model", self.model or None, "name", self.name or None) or ""


Body = TypeVar("Body", bound=_ModelBody)


class ShowBody(_ModelBody, ignored="verbose system template options"):
    """What `/api/show` takes."""


class PullBody(_ModelBody, ignored="insecure username password"):
    """What `/api/pull` takes."""

    stream: bool = True


class OllamaModels:
    """The routes of one server, whose models never change."""

    def __init__(self, pool: ModelPool, settings: ServerSettings) -> None:
        self._pool = pool
        self._settings = settings
        self._since = now()

    @property
    def routes(self) -> list[Route]:
        """By Ollama's paths."""
        unchanged = refusing(501, _NO_CHANGES)
        return [
            Route("/api/version", self._version),
            Route("/api/tags", self._tags),
            Route("/api/ps", self._ps),
            Route("/api/show", self._show, methods=["POST"]),
            Route("/api/pull", self._pull, methods=["POST"]),
            *(Route(f"/api/{name}", unchanged, methods=["POST"]) for name in ("create", "copy", "push")),
            Route("/api/delete", unchanged, methods=["DELETE"]),
            Route("/api/blobs/{digest}", unchanged, methods=["HEAD", "POST"]),
        ]

    async def _version(self, request: Request) -> Response:
        return _answered({"version": _OLLAMA_VERSION, "reader_edge": __version__})

    async def _tags(self, request: Request) -> Response:
        described = [each for model in self._pool.models for each in (_described(model), *_adapters(model))]
        return _answered({"models": [each | {"modified_at": self._since} for each in described]})

    async def _ps(self, request: Request) -> Response:
        return _answered({"models": [self._running(each) for each in self._pool.models if each.loaded is not None]})

    def _running(self, model: ServedModel) -> Json:
        left_s = self._pool.expires_s(model)
        expires_at = _NEVER if left_s == math.inf else utc(datetime.now(UTC) + timedelta(seconds=max(left_s, 0)))
        taken = {"size": self._pool.num_bytes(model)} if self._settings.unloads else {}
        return _described(model) | taken | {"expires_at": expires_at, "size_vram": 0}

    async def _show(self, request: Request) -> Response:
        try:
            body = await self._decoded(request, ShowBody)
            model = self._found(body)
            adapter = self._pool.settings_of(model).adapter_named(body.requested)
            try:
                tokenizer = await asyncio.to_thread(lambda: model.tokenizer)
            except ReaderEdgeError as error:
                raise not_loaded(model.name, error) from None
        except Exception as error:
            return api_error(error).response("ollama")
        manifest = model.package.manifest
        architecture = manifest.architecture
        return _answered(
            {
                "modelfile": "",
                "parameters": "\n".join(f"{name:<30} {value:g}" for name, value in _parameters(model).items()),
                "template": tokenizer.chat_source,
                "license": "",
                "details": _details(model, None if adapter is None else model),
                "model_info": {
                    "general.architecture": architecture,
                    f"{architecture}.context_length": manifest.max_context,
                    f"{architecture}.block_count": manifest.num_layers,
                    f"{architecture}.attention.head_count": manifest.num_heads,
                    f"{architecture}.attention.head_count_kv": manifest.num_kv_heads,
                },
                "capabilities": _capabilities(manifest, tokenizer),
                "modified_at": self._since,
            }
        )

    async def _decoded(self, request: Request, kind: type[Body]) -> Body:
        """Raises ApiError."""
        return decode(await read_ollama_values(request, self._settings), kind, LeftOut(self._settings.refused_fields))

    def _found(self, body: _ModelBody) -> ServedModel:
        """The model that is meant. Raises ApiError."""
        model = self._pool.find(body.requested)
        check_ollama_model(body.requested, self._pool.settings_of(model))
        return model

    async def _pull(self, request: Request) -> Response:
        """Clients pull what they are about to ask: a model that is here is here."""
        try:
            body = await self._decoded(request, PullBody)
            self._found(body)
        except ApiError as error:
            refusal = ApiError(501, _NO_CHANGES) if error.status == 404 else error
            return refusal.response("ollama")
        except Exception as error:
            return api_error(error).response("ollama")
        text = json.dumps({"status": "success"})
        return Response(f"{text}\n" if body.stream else text, media_type=_LINES if body.stream else _JSON)


def _capabilities(manifest: Manifest, tokenizer: Tokenizer) -> list[str]:
    if manifest.pooling == "last":
        return ["embedding"]
    thinking = [] if tokenizer.thinking_tags is None else ["thinking"]
    inserting = [] if tokenizer.fill_in_middle is None else ["insert"]
    seeing = [] if manifest.images is None else ["vision"]
    return ["completion", *(["tools"] if tokenizer.has_chat_template else []), *seeing, *thinking, *inserting]


def _parameters(model: ServedModel) -> dict[str, float]:
    """What a model recommends, by Ollama's names."""
    return {
        ("repeat_penalty" if name == "repetition_penalty" else name): value for name, value in model.sampling.items()
    }


def _described(model: ServedModel) -> Json:
    name, manifest = tagged(model.name), model.package.manifest
    return {
        "name": name,
        "model": name,
        "size": manifest.num_bytes,
        "digest": model.package.fingerprint().hex(),
        "details": _details(model),
        "context_length": manifest.max_context,
    }


def _adapters(model: ServedModel) -> list[Json]:
    """A model's adapters, each as a model made of it."""
    details = _details(model, model)
    return [
        _described(model) | {"name": tagged(name), "model": tagged(name), "details": details} for name in model.adapters
    ]


def _details(model: ServedModel, parent: ServedModel | None = None) -> Json:
    manifest = model.package.manifest
    return {
        "parent_model": "" if parent is None else tagged(parent.name),
        "format": "onnx",
        "family": manifest.architecture,
        "families": [manifest.architecture],
        "parameter_size": _parameter_size(model.name) or _parameter_size(manifest.source_name),
        "quantization_level": _quantization(manifest),
    }


def _parameter_size(name: str) -> str:
    """What a model's name says of it; "" where that is nothing."""
    size = _SIZE.search(name)
    return "" if size is None else size[0].upper()


def _quantization(manifest: Manifest) -> str:
    """The precision; of weights that are as in a GGUF file what its name says, or the type of most matrices."""
    if not manifest.kept_types:
        return manifest.precision
    named = _TYPE.search(manifest.source_name.upper())
    return max(manifest.kept_types, key=manifest.kept_types.__getitem__) if named is None else named[0]


_JSON, _LINES = "application/json", "application/x-ndjson"


def _answered(fields: Json) -> Response:
    return Response(json.dumps(fields), media_type=_JSON)
