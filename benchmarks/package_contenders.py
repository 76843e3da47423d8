"""Packages by name as contenders, each run by this checkout or another one; GGUF files, run by llama.cpp."""

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.runtimes import OUR_PATH, RUNTIMES, THREADS, Contender

KERNELS = "kernels"  # folder that checkouts of before have their native kernels in, a package of its own then
_LIBRARY = "runtime/reader_edge_runtime/execution/onnxruntime/reader_edge_native.*"


@dataclass(frozen=True, slots=True)
class PackageContender(Contender):
    """A model package. label: what tables call it. checkout: whose code runs it, None for this one."""

    label: str
    package: Path
    checkout: Path | None

    @property
    def name(self) -> str:
        return self.label

    @property
    def python(self) -> Path:
        return Path(sys.executable)

    @property
    def environment(self) -> dict[str, str]:
        """Threads bounded, and the packages of its checkout."""
        path = OUR_PATH
        if self.checkout is not None:
            path = os.pathsep.join(str(self.checkout / part) for part in (KERNELS, "", "runtime", "export"))
        return {
            "OMP_NUM_THREADS": str(THREADS),
            "PYTHONPATH": os.pathsep.join([path, os.environ.get("PYTHONPATH", "")]),
        }

    def model(self, shape: str) -> str:
        return str(self.package)


@dataclass(frozen=True, slots=True)
class GgufContender(Contender):
    """A GGUF file. label: what tables call it. interpreter: of an environment with llama-cpp-python."""

    label: str
    file: Path
    interpreter: Path

    @property
    def name(self) -> str:
        return self.label

    @property
    def python(self) -> Path:
        return self.interpreter

    def model(self, shape: str) -> str:
        return str(self.file)


def package_contender(text: str, cache: Path) -> PackageContender | GgufContender:
    """Of NAME=PACKAGE, NAME=PACKAGE@CHECKOUT or NAME=FILE.gguf@PYTHON; cache: where logs go. Raises ValueError."""
    label, is_named, rest = text.partition("=")
    package, _, checkout = rest.partition("@")
    if label and package.endswith(".gguf"):
        return _gguf_contender(label, Path(package), Path(checkout), cache)
    if not is_named or not label or not Path(package, "reader_edge.json").is_file():
        raise ValueError(f"{text!r} is not NAME=PACKAGE, with a package's folder.")
    runtime = replace(RUNTIMES[0], requirements=())
    if not checkout:
        return PackageContender(runtime, "", cache, label, Path(package).resolve(), None)
    worker = Path(checkout, "benchmarks", "workers", runtime.worker).resolve()
    has_kernels = Path(checkout, KERNELS, "reader_edge_native").is_dir() or any(Path(checkout).glob(_LIBRARY))
    if not worker.is_file() or not has_kernels:
        raise ValueError(
            f"{checkout!r} is no checkout with native kernels: build them with native/build_library.py there."
        )
    folder = Path(checkout).resolve()
    return PackageContender(replace(runtime, worker=str(worker)), "", cache, label, Path(package).resolve(), folder)


def _gguf_contender(label: str, file: Path, interpreter: Path, cache: Path) -> GgufContender:
    if not file.is_file() or not interpreter.is_file():
        raise ValueError(f"'{label}={file}@{interpreter}' is not NAME=FILE.gguf@PYTHON, of two files that are there.")
    runtime = next(runtime for runtime in RUNTIMES if runtime.name == "llama.cpp")
    return GgufContender(runtime, "", cache, label, file.resolve(), interpreter.absolute())
