"""reader-edge: lossless speculative decoding for exported language models on ONNX Runtime."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reader_edge.engine import AsyncEngine, Engine
    from reader_edge.remote.remote_engine import RemoteEngine
    from reader_edge_runtime import (
        Conversation,
        DraftConfig,
        DraftSources,
        EngineConfig,
        GenerationChunk,
        GenerationConfig,
        GenerationOptions,
        GenerationResult,
        GenerationStats,
        Grammar,
        Message,
        ReaderEdgeError,
        SamplingConfig,
        ServingConfig,
        ToolCall,
        Usage,
    )

__version__ = "0.2.0"

__all__ = [
    "AsyncEngine",
    "Conversation",
    "DraftConfig",
    "DraftSources",
    "Engine",
    "EngineConfig",
    "GenerationChunk",
    "GenerationConfig",
    "GenerationOptions",
    "GenerationResult",
    "GenerationStats",
    "Grammar",
    "Message",
    "ReaderEdgeError",
    "RemoteEngine",
    "SamplingConfig",
    "ServingConfig",
    "ToolCall",
    "Usage",
    "__version__",
]

_PLACES = {
    "AsyncEngine": "reader_edge.engine",
    "Engine": "reader_edge.engine",
    "RemoteEngine": "reader_edge.remote.remote_engine",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # At first use, so that the command line starts at once, and can say when ONNX Runtime is missing.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_PLACES.get(name, "reader_edge_runtime")), name)

    def __dir__() -> list[str]:
        return sorted(__all__)
