"""What clients ask over HTTP: answers, by their paths, and which models there are, as OpenAI, LM Studio and Anthropic
have it."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from reader_edge.server.anthropic.endpoints import CountTokensEndpoint, MessagesEndpoint
from reader_edge.server.api_error import NO_EMBEDDINGS, Handler, interface_of, no_model, refusing
from reader_edge.server.endpoint import Endpoint
from reader_edge.server.metrics import Metrics
from reader_edge.server.ollama.endpoints import GenerateEndpoint, OllamaChatEndpoint
from reader_edge.server.openai.chat_completions import ChatEndpoint
from reader_edge.server.openai.completions import CompletionsEndpoint
from reader_edge.server.openai.responses import ResponsesEndpoint
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine
from reader_edge_runtime.package.manifest import Manifest

ENDPOINTS: Mapping[str, type[Endpoint[Any]]] = {
    "/v1/chat/completions": ChatEndpoint,
    "/v1/completions": CompletionsEndpoint,
    "/v1/responses": ResponsesEndpoint,
}
OLLAMA_ENDPOINTS: Mapping[str, type[Endpoint[Any]]] = {
    "/api/chat": OllamaChatEndpoint,
    "/api/generate": GenerateEndpoint,
}
ANTHROPIC_ENDPOINTS: Mapping[str, type[Endpoint[Any]]] = {
    "/v1/messages": MessagesEndpoint,
    "/v1/messages/count_tokens": CountTokensEndpoint,
}
PATHS = tuple(ENDPOINTS)

# Requested by clients of other servers, which load models on demand, or show their slots and tokens.
_LOADING = (
    *("/v1/models/load", "/v1/models/unload", "/models/load", "/models/unload"),
    *("/api/v1/models/load", "/api/v1/models/unload", "/api/v1/models/download"),
)


def make_endpoints(engine: AsyncEngine, settings: ServerSettings, metrics: Metrics) -> Mapping[str, Endpoint[Any]]:
    """A handler for each path, of all interfaces."""
    every = {**ENDPOINTS, **OLLAMA_ENDPOINTS, **ANTHROPIC_ENDPOINTS}
    return {path: endpoint(engine, settings, metrics) for path, endpoint in every.items()}


def discovery_routes(settings: ServerSettings, manifest: Manifest) -> list[Route]:
    """Routes that describe the one model there is, and refuse in one sentence what else clients want of models."""
    name, since_s = settings.model_name, int(time.time())
    model = {"id": name, "object": "model", "created": since_s, "owned_by": "reader-edge"}
    model |= {"max_model_len": manifest.max_context}
    for_anthropic = {
        **{"type": "model", "id": name, "display_name": name, "lifecycle": "active"},
        **{"created_at": datetime.fromtimestamp(since_s, UTC).isoformat(), "max_tokens": settings.max_tokens},
        "max_input_tokens": manifest.max_context,
    }
    for_studio = {
        **{"id": name, "object": "model", "type": "llm", "publisher": "reader-edge", "arch": manifest.architecture},
        **{"compatibility_type": "onnx", "state": "loaded", "max_context_length": manifest.max_context},
    }
    for_studio_1 = {
        **{"type": "llm", "publisher": "reader-edge", "key": name, "display_name": name, "format": None},
        **{"architecture": manifest.architecture, "quantization": None, "params_string": None},
        "max_context_length": manifest.max_context,
        "loaded_instances": [{"id": name, "config": {"context_length": manifest.max_context}}],
    }

    async def studio_models(request: Request) -> Response:
        return JSONResponse({"models": [for_studio_1]})

    def models_handler(description: dict[str, object]) -> Handler:
        """The handler of the list of models, and of a model by name."""

        async def models(request: Request) -> Response:
            interface, requested = interface_of(request), request.path_params.get("name")
            shown, page = description, dict[str, object](object="list")
            if interface == "anthropic":
                shown, page = for_anthropic, {"first_id": name, "last_id": name, "has_more": False}
            if requested is None:
                return JSONResponse(page | {"data": [shown]})
            if not settings.is_served(requested):
                return no_model(requested, name).response(interface)
            return JSONResponse(shown)

        return models

    loaded = f"{name!r} is loaded as long as the server runs, and no other model can be: ask it right away."
    return [
        *(Route(path, refusing(400, loaded), methods=["POST"]) for path in _LOADING),
        Route("/v1/embeddings", refusing(400, NO_EMBEDDINGS), methods=["POST"]),
        *(Route(path, refusing(404, _INSIDE), methods=["GET", "POST"]) for path in ("/props", "/slots")),
        *(Route(path, refusing(404, _TOKENS), methods=["POST"]) for path in ("/tokenize", "/detokenize")),
        Route("/v1/models", models_handler(model)),
        Route("/v1/models/{name:path}", models_handler(model)),
        Route("/api/v1/models", studio_models),
        Route("/api/v0/models", models_handler(for_studio)),
        Route("/api/v0/models/{name:path}", models_handler(for_studio)),
    ]


_INSIDE = (
    "The server does not show its slots: '/v1/models' names the model and its context, '/metrics' has its figures."
)
_TOKENS = "The server does not tokenize by itself: 'usage' of an answer counts tokens, and prompts may be token ids."
