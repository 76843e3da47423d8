"""Links a real model into the cache of conversions, and lists the runtimes and precisions that it is compared in."""

import hashlib
from pathlib import Path

from benchmarks.peers.runtimes import KEPT, READY_MADE, RUNTIMES, Contender

COMPARED = ("reader-edge", "onnxruntime-genai", "openvino-genai", "llama.cpp")
# Of a ready-made file, which llama.cpp's server takes in place of the conversions.
KEEPING = {"reader-edge": (KEPT,), "llama-server": (f"{KEPT} ngram-mod", f"{KEPT} ngram-simple")}


def shape_of(source: Path) -> str:
    """What a real model is called among the shapes: its name, and a mark that no other source has."""
    path = source.resolve()
    return f"{path.stem}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def place_source(cache: Path, source: Path, gguf: Path | None) -> None:
    """Link a model into the cache, where conversions are kept beside it.

    source: a Hugging Face folder or a GGUF file. gguf: what llama.cpp takes in place of its own conversion; None takes
    the source itself where that is a file.
    """
    folder = cache / "models" / shape_of(source)
    folder.mkdir(parents=True, exist_ok=True)
    ready_made = gguf or (source if source.is_file() else None)
    for name, path in (("source", source), (f"llama.cpp-{READY_MADE}", ready_made)):
        (folder / name).unlink(missing_ok=True)
        if path is not None:
            (folder / name).symlink_to(path.resolve())


def real_contenders(cache: Path, source: Path) -> list[Contender]:
    """The runtimes at 8 and 4 bits, and with the weights of a ready-made file where there is one."""
    has_file = (cache / "models" / shape_of(source) / f"llama.cpp-{READY_MADE}").exists()
    found = []
    for runtime in RUNTIMES:
        precisions = list(KEEPING.get(runtime.name, ())) if has_file else []
        if runtime.name in COMPARED and not (has_file and runtime.name == "llama.cpp"):
            precisions += [name for name, bits in runtime.precisions.items() if bits <= 8 and " " not in name]
        found += [Contender(runtime, precision, cache) for precision in precisions]
    return found
