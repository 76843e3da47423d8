"""What can be asked of an engine, by the paths of OpenAI's interface."""

from collections.abc import Mapping

from reader_edge.server.chat_completions import ChatWording
from reader_edge.server.completions import CompletionWording
from reader_edge.server.endpoint import ChoicesEndpoint, Endpoint
from reader_edge.server.metrics import Metrics
from reader_edge.server.responses import ResponsesEndpoint, ResponseWording
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


def make_endpoints(engine: AsyncEngine, settings: ServerSettings, metrics: Metrics) -> Mapping[str, Endpoint]:
    """A handler for each of PATHS."""
    endpoints: list[Endpoint] = [
        ChoicesEndpoint(ChatWording(), engine, settings, metrics),
        ChoicesEndpoint(CompletionWording(), engine, settings, metrics),
        ResponsesEndpoint(ResponseWording(), engine, settings, metrics),
    ]
    return dict(zip(PATHS, endpoints, strict=True))
