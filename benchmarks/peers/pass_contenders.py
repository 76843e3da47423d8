"""The runtimes and precisions whose passes are timed, each with its KV caches."""

from pathlib import Path

from benchmarks.peers.runtimes import KEPT, RUNTIMES, Contender

# Of KV caches, our default is int8, llama.cpp's f16, OpenVINO's u8, onnxruntime-genai's fp32.
PRECISIONS = {
    "reader-edge": ("int8", "int8-kv-fp32", "int4", KEPT),
    "onnxruntime-genai": ("int4",),
    "openvino-genai": ("int4",),
    "llama.cpp": ("q4_0", "q4_0 kv-q8_0", "q4_k_m", "q4_k_m kv-q8_0"),
}


def pass_contenders(cache: Path, shape: str) -> list[Contender]:
    """Everybody in `PRECISIONS`, "keep" where a ready-made GGUF file has weights to keep."""
    found = [Contender(runtime, each, cache) for runtime in RUNTIMES for each in PRECISIONS.get(runtime.name, ())]
    return [each for each in found if each.precision != KEPT or each.source(shape).exists()]
