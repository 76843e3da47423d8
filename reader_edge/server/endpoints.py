"""What can be asked of an engine, by the paths of OpenAI's interface."""

from collections.abc import Mapping
from typing import Any

from reader_edge.server.endpoint import Endpoint
from reader_edge.server.metrics import Metrics
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
PATHS = tuple(ENDPOINTS)


def make_endpoints(engine: AsyncEngine, settings: ServerSettings, metrics: Metrics) -> Mapping[str, Endpoint[Any]]:
    """A handler for each of PATHS."""
    return {path: endpoint(engine, settings, metrics) for path, endpoint in ENDPOINTS.items()}
