"""reader-edge's runtime: ONNX Runtime, numpy and tokenizers; no torch, no transformers, no network."""

from typing import TYPE_CHECKING

from reader_edge_runtime.answer import GenerationChunk, GenerationResult
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
from reader_edge_runtime.stats import GenerationStats
from reader_edge_runtime.text.conversation import Conversation, Message

if TYPE_CHECKING:
    from reader_edge_runtime.serving.async_engine import AsyncEngine

__all__ = [
    "AsyncEngine",
    "Conversation",
    "DraftConfig",
    "DraftSources",
    "Engine",
    "EngineConfig",
    "GenerationChunk",
    "GenerationConfig",
    "GenerationResult",
    "GenerationStats",
    "Grammar",
    "Message",
    "ReaderEdgeError",
    "SamplingConfig",
    "ServingConfig",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name != "AsyncEngine":  # at first use: asyncio takes a while to import
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from reader_edge_runtime.serving.async_engine import AsyncEngine

        return AsyncEngine
