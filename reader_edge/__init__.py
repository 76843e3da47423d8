"""reader-edge: lossless speculative decoding for exported language models on ONNX Runtime."""

from reader_edge_runtime import (
    DraftConfig,
    Engine,
    EngineConfig,
    GenerationChunk,
    GenerationConfig,
    GenerationResult,
    GenerationStats,
    Message,
    ReaderEdgeError,
    SamplingConfig,
)

__version__ = "0.1.0"

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
    "__version__",
]
