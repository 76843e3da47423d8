"""reader-edge's runtime: ONNX Runtime, numpy and tokenizers; no torch, no transformers, no network."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reader_edge_runtime.answer import GenerationChunk, GenerationResult, Usage
    from reader_edge_runtime.call_options import GenerationOptions
    from reader_edge_runtime.config import (
        DraftConfig,
        EngineConfig,
        GenerationConfig,
        Grammar,
        SamplingConfig,
        ServingConfig,
    )
    from reader_edge_runtime.drafting.draft_sources import DraftSources
    from reader_edge_runtime.engine import Engine
    from reader_edge_runtime.errors import ReaderEdgeError
    from reader_edge_runtime.serving.async_engine import AsyncEngine
    from reader_edge_runtime.stats import GenerationStats
    from reader_edge_runtime.text.conversation import Conversation, Message
    from reader_edge_runtime.text.tool_calls.tool_use import ToolCall

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
    "SamplingConfig",
    "ServingConfig",
    "ToolCall",
    "Usage",
]

_PLACES = {
    "AsyncEngine": "serving.async_engine",
    "Conversation": "text.conversation",
    "DraftConfig": "config",
    "DraftSources": "drafting.draft_sources",
    "Engine": "engine",
    "EngineConfig": "config",
    "GenerationChunk": "answer",
    "GenerationConfig": "config",
    "GenerationOptions": "call_options",
    "GenerationResult": "answer",
    "GenerationStats": "stats",
    "Grammar": "config",
    "Message": "text.conversation",
    "ReaderEdgeError": "errors",
    "SamplingConfig": "config",
    "ServingConfig": "config",
    "ToolCall": "text.tool_calls.tool_use",
    "Usage": "answer",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # At first use: an examination begins where no engine of execution can be loaded, and asyncio takes a while.
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)

    def __dir__() -> list[str]:
        return sorted(__all__)
