"""The endpoints of each API by URL path, opened once for each loaded model, and the paths that are refused."""

from collections.abc import Mapping
from typing import Any

from starlette.routing import Route

from reader_edge.server.anthropic.endpoints import CountTokensEndpoint, MessagesEndpoint
from reader_edge.server.api_error import refusing
from reader_edge.server.embeddings import EmbeddingsEndpoint, OllamaEmbeddingsEndpoint, OllamaEmbedEndpoint
from reader_edge.server.endpoint import Endpoint
from reader_edge.server.llama_cpp.infill import InfillEndpoint
from reader_edge.server.llama_cpp.tokens import DetokenizeEndpoint, TokenizeEndpoint
from reader_edge.server.metrics import Metrics
from reader_edge.server.ollama.endpoints import GenerateEndpoint, OllamaChatEndpoint
from reader_edge.server.openai.chat_completions import ChatEndpoint
from reader_edge.server.openai.completions import CompletionsEndpoint
from reader_edge.server.openai.response_store import ResponseStore
from reader_edge.server.openai.responses import ResponsesEndpoint
from reader_edge.server.rerank import RerankEndpoint
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine

OPENAI_ENDPOINTS: Mapping[str, type[Endpoint[Any]]] = {
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
LLAMA_CPP_ENDPOINTS: Mapping[str, type[Endpoint[Any]]] = {
    "/infill": InfillEndpoint,
    "/tokenize": TokenizeEndpoint,
    "/detokenize": DetokenizeEndpoint,
}
READING_ENDPOINTS: Mapping[str, type[Endpoint[Any]]] = {
    "/v1/embeddings": EmbeddingsEndpoint,
    "/v1/rerank": RerankEndpoint,
    "/v2/rerank": RerankEndpoint,  # Cohere's
    "/rerank": RerankEndpoint,
    "/api/embed": OllamaEmbedEndpoint,
    "/api/embeddings": OllamaEmbeddingsEndpoint,
}
_OTHERS = {**OLLAMA_ENDPOINTS, **ANTHROPIC_ENDPOINTS, **LLAMA_CPP_ENDPOINTS, **READING_ENDPOINTS}
EVERY_ENDPOINT = {**OPENAI_ENDPOINTS, **_OTHERS}
OPENAI_PATHS = tuple(OPENAI_ENDPOINTS)


def make_endpoints(
    engine: AsyncEngine, settings: ServerSettings, metrics: Metrics, responses: ResponseStore | None = None
) -> Mapping[str, Endpoint[Any]]:
    """A handler for each path, of all interfaces. responses: that clients may go on from."""
    made = {path: endpoint(engine, settings, metrics) for path, endpoint in EVERY_ENDPOINT.items()}
    return {**made, "/v1/responses": ResponsesEndpoint(engine, settings, metrics, responses)}


def refusing_routes() -> list[Route]:
    """Routes that refuse in one sentence what clients of other servers want."""
    return [
        Route("/slots", refusing(404, _INSIDE), methods=["GET", "POST"]),
    ]


_INSIDE = "The server does not show its slots: '/props' describes the model, '/metrics' has its figures."
