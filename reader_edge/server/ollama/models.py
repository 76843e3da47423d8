"""Ollama's endpoints besides answers: version, models, and those that a server of one model refuses."""

import json

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reader_edge import __version__
from reader_edge.server.api_error import NO_EMBEDDINGS, ApiError, agreed, api_error, refusing
from reader_edge.server.completion import Json
from reader_edge.server.ignored_fields import LeftOut
from reader_edge.server.ollama.endpoints import check_ollama_model, now, read_ollama_values
from reader_edge.server.schema import JsonObject, decode
from reader_edge.server.settings import ServerSettings, tagged
from reader_edge_runtime import Engine

# The interface that is spoken here; some clients ask for a version of Ollama that has tools and schemas.
_OLLAMA_VERSION = "0.12.6"
_NEVER = "2318-01-01T00:00:00Z"  # when the model is unloaded: Ollama tells such a date for one that stays
_NO_CHANGES = (
    "This server has one model and changes nothing of it: use `reader-edge pull`, `export`, `rm` and `serve` on its "
    "command line."
)


class _ModelBody(JsonObject):
    """name: an older word for the model."""

    model: str = ""
    name: str = ""

    @property
    def requested(self) -> str:
        """The model. Raises ApiError."""
        return agreed("model", self.model or None, "name", self.name or None) or ""


class ShowBody(_ModelBody, ignored="verbose system template options"):
    """What `/api/show` takes."""


class PullBody(_ModelBody, ignored="insecure username password"):
    """What `/api/pull` takes."""

    stream: bool = True


class OllamaModels:
    """The routes of one server, whose model never changes."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._manifest = engine.package.manifest
        self._since = now()

    @property
    def routes(self) -> list[Route]:
        """By Ollama's paths."""
        unchanged = refusing(501, _NO_CHANGES)
        no_embeddings = refusing(400, NO_EMBEDDINGS)
        return [
            Route("/api/version", self._version),
            Route("/api/tags", self._tags),
            Route("/api/ps", self._ps),
            Route("/api/show", self._show, methods=["POST"]),
            Route("/api/pull", self._pull, methods=["POST"]),
            *(Route(f"/api/{name}", unchanged, methods=["POST"]) for name in ("create", "copy", "push")),
            Route("/api/delete", unchanged, methods=["DELETE"]),
            Route("/api/blobs/{digest}", unchanged, methods=["HEAD", "POST"]),
            *(Route(f"/api/{name}", no_embeddings, methods=["POST"]) for name in ("embed", "embeddings")),
        ]

    async def _version(self, request: Request) -> Response:
        return _answered({"version": _OLLAMA_VERSION, "reader_edge": __version__})

    async def _tags(self, request: Request) -> Response:
        return _answered({"models": [self._model | {"modified_at": self._since}]})

    async def _ps(self, request: Request) -> Response:
        running = {"expires_at": _NEVER, "size_vram": 0, "context_length": self._manifest.max_context}
        return _answered({"models": [self._model | running]})

    async def _show(self, request: Request) -> Response:
        try:
            body = decode(
                await read_ollama_values(request, self._settings), ShowBody, LeftOut(self._settings.refused_fields)
            )
            check_ollama_model(body.requested, self._settings)
        except Exception as error:
            return api_error(error).response("ollama")
        architecture = self._manifest.architecture
        return _answered(
            {
                "modelfile": "",
                "parameters": "\n".join(f"{name:<30} {value:g}" for name, value in self._parameters.items()),
                "template": self._engine.tokenizer.chat_source,
                "license": "",
                "details": self._details,
                "model_info": {
                    "general.architecture": architecture,
                    f"{architecture}.context_length": self._manifest.max_context,
                    f"{architecture}.block_count": self._manifest.num_layers,
                    f"{architecture}.attention.head_count": self._manifest.num_heads,
                    f"{architecture}.attention.head_count_kv": self._manifest.num_kv_heads,
                },
                "capabilities": self._capabilities,
                "modified_at": self._since,
            }
        )

    async def _pull(self, request: Request) -> Response:
        """Clients pull what they are about to ask: the model that is here is here."""
        try:
            body = decode(
                await read_ollama_values(request, self._settings), PullBody, LeftOut(self._settings.refused_fields)
            )
            check_ollama_model(body.requested, self._settings)
        except ApiError as error:
            refusal = ApiError(501, _NO_CHANGES) if error.status == 404 else error
            return refusal.response("ollama")
        except Exception as error:
            return api_error(error).response("ollama")
        text = json.dumps({"status": "success"})
        return Response(f"{text}\n" if body.stream else text, media_type=_LINES if body.stream else _JSON)

    @property
    def _parameters(self) -> dict[str, float]:
        """What the model recommends, by Ollama's names."""
        own = self._engine.sampling
        return {("repeat_penalty" if name == "repetition_penalty" else name): value for name, value in own.items()}

    @property
    def _model(self) -> Json:
        name = tagged(self._settings.model_name)
        digest = self._engine.package.fingerprint().hex()
        return {
            "name": name,
            "model": name,
            "size": self._manifest.num_bytes,
            "digest": digest,
            "details": self._details,
        }

    @property
    def _details(self) -> Json:
        architecture = self._manifest.architecture
        return {
            "parent_model": "",
            "format": "onnx",
            "family": architecture,
            "families": [architecture],
            "parameter_size": "",
            "quantization_level": self._manifest.precision,
        }

    @property
    def _capabilities(self) -> list[str]:
        tokenizer = self._engine.tokenizer
        thinking = ["thinking"] if tokenizer.thinking_tags is not None else []
        return ["completion", *(["tools"] if tokenizer.has_chat_template else []), *thinking]


_JSON, _LINES = "application/json", "application/x-ndjson"


def _answered(fields: Json) -> Response:
    return Response(json.dumps(fields), media_type=_JSON)
