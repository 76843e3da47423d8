"""What can be asked of an engine, by the paths of OpenAI's interface and of Ollama's."""

from collections.abc import Mapping
from typing import Any

from reader_edge.server.endpoint import Endpoint
from reader_edge.server.metrics import Metrics
from reader_edge.server.ollama.answering import GenerateEndpoint, OllamaChatEndpoint
from reader_edge.server.openai.chat_completions import ChatEndpoint
from reader_edge.server.openai.completions import CompletionsEndpoint
from reader_edge.server.openai.responses import ResponsesEndpoint
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine

ENDPOINTS: Mapping[str, type[Endpoint[Any]]] = {
    "/v1/chat/completions": ChatEndpoint,
    "/v1/completions": CompletionsEndpoint,
    "/v1/responses": ResponsesEndpoint,
}
OLLAMA_ENDPOINTS: Mapping[str, type[Endpoint[Any]]] = {
    "/api/chat": OllamaChatEndpoint,
    "/api/generate": GenerateEndpoint,
}
PATHS = tuple(ENDPOINTS)


def make_endpoints(engine: AsyncEngine, settings: ServerSettings, metrics: Metrics) -> Mapping[str, Endpoint[Any]]:
    """A handler for each path, of OpenAI's interface and of Ollama's."""
    every = {**ENDPOINTS, **OLLAMA_ENDPOINTS}
    return {path: endpoint(engine, settings, metrics) for path, endpoint in every.items()}
