"""reader-edge's runtime: ONNX Runtime, numpy and tokenizers; no torch, no transformers, no network."""

from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.engine import Engine, GenerationChunk, GenerationResult
from reader_edge_runtime.errors import ReaderEdgeError
from reader_edge_runtime.stats import GenerationStats
from reader_edge_runtime.text.chat_template import Message

__all__ = [
    "DraftConfig",
    "Engine",
    "EngineConfig",
    "GenerationChunk",
    "GenerationConfig",
    "GenerationResult",
    "GenerationStats",
    "Message",
    "ReaderEdgeError",
    "SamplingConfig",
]
