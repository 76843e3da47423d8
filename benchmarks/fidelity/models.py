"""Makes the packages and GGUF files of one source whose fidelity is measured, once, and keeps them."""

import hashlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.prepare import install, run
from benchmarks.peers.runtimes import OUR_PATH, ROOT, THREADS, Command, contenders, export_command
from reader_edge_export.sources.source import Source
from reader_edge_runtime.package.manifest import sha256_of

# What decides on a package's bits, and on those of its logits.
_OUR_CODE = ("export/reader_edge_export", "runtime/reader_edge_runtime/execution", "native/src")


class FidelityModels:
    """llama_cpp: the environment that reads GGUF files. original: the GGUF file that was given, under a name here."""

    def __init__(self, cache: Path, source: Source, gguf: Path | None) -> None:
        self.source = source
        self.llama_cpp = next(c for c in contenders(cache) if c.name == "llama.cpp f32")
        gguf = Path(source.name) if source.name.endswith(".gguf") else gguf
        key = source.fingerprint() + (sha256_of(gguf) if gguf else "")
        self._folder = cache / "fidelity" / hashlib.sha256(key.encode()).hexdigest()[:16]
        self._folder.mkdir(parents=True, exist_ok=True)
        self.original = self._folder / "original.gguf" if gguf else None
        if self.original and gguf and not self.original.exists():
            self.original.symlink_to(gguf.resolve())

    def package(self, precision: str) -> Path:
        """A package by the export as it is now, of a precision as `export_command` takes it."""
        out = self._folder / f"reader-edge-{precision}-{_digest_of_our_code()}"
        source = Path(self.source.name)
        ours = Path(sys.executable)
        return self._made(out, lambda partial: [*export_command(ours, source, partial, precision), "--check", "none"])

    def gguf_file(self, kind: str) -> Path:
        """A GGUF file of a type in gguf_converter.py; others than f32 by llama.cpp's own quantiser from that."""
        install(self.llama_cpp)
        source = (self.original or Path(self.source.name)) if kind == "f32" else self.gguf_file("f32")
        converter: Command = [self.llama_cpp.python, ROOT / "benchmarks" / "peers" / "gguf_converter.py"]
        return self._made(self._folder / f"{kind}.gguf", lambda partial: [*converter, source, partial, kind])

    def _made(self, out: Path, command: Callable[[Path], Command]) -> Path:
        """`out`, made by a command that gets the path to write to; half-written ones never take its name."""
        if not out.exists():
            partial = out.with_name(f"{out.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            run(command(partial), self._folder, {"PYTHONPATH": OUR_PATH, "OMP_NUM_THREADS": str(THREADS)})
            partial.rename(out)
        return out


def _digest_of_our_code() -> str:
    digest = hashlib.sha256()
    for folder in _OUR_CODE:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".md"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
