"""reader-edge: lossless speculative decoding for exported language models on ONNX Runtime."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reader_edge.remote.remote_engine import RemoteEngine
    from reader_edge_runtime import (
        AsyncEngine,
        Conversation,
        DraftConfig,
        DraftSources,
        Engine,
        EngineConfig,
        GenerationChunk,
        GenerationConfig,
        GenerationResult,
        GenerationStats,
        Grammar,
        Message,
        ReaderEdgeError,
        SamplingConfig,
        ServingConfig,
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
    "GenerationResult",
    "GenerationStats",
    "Grammar",
    "Message",
    "ReaderEdgeError",
    "RemoteEngine",
    "SamplingConfig",
    "ServingConfig",
    "__version__",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # At first use, so that the command line starts at once, and can say when ONNX Runtime is missing.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "RemoteEngine":
            from reader_edge.remote.remote_engine import RemoteEngine

            return RemoteEngine
        import reader_edge_runtime

        return getattr(reader_edge_runtime, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
