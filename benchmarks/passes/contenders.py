"""What `benchmarks.passes` compares: packages of ours, and GGUF files in llama.cpp or another runtime of them."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.peers.runtimes import RUNTIMES, Contender


@dataclass(frozen=True, slots=True)
class PackageContender(Contender):
    """A model package. label: what tables call it."""

    label: str
    package: Path

    @property
    def name(self) -> str:
        return self.label

    @property
    def python(self) -> Path:
        return Path(sys.executable)

    def model(self, shape: str) -> str:
        return str(self.package)


@dataclass(frozen=True, slots=True)
class GgufContender(Contender):
    """A GGUF file. label: what tables call it. interpreter: of an environment with its runtime."""

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


def contender(text: str, cache: Path) -> PackageContender | GgufContender:
    """Of NAME=PACKAGE or NAME=FILE.gguf@PYTHON[,RUNTIME]; cache: where logs go. Raises ValueError."""
    label, is_named, rest = text.partition("=")
    package, _, interpreter = rest.partition("@")
    if label and package.endswith(".gguf"):
        python, _, runtime = interpreter.partition(",")
        return _gguf_contender(label, Path(package), Path(python), runtime or "llama.cpp", cache)
    if not is_named or not label or not Path(package, "reader_edge.json").is_file():
        raise ValueError(f"{text!r} is not NAME=PACKAGE, with a package's folder.")
    return PackageContender(replace(RUNTIMES[0], requirements=()), "", cache, label, Path(package).resolve())


def _gguf_contender(label: str, file: Path, interpreter: Path, name: str, cache: Path) -> GgufContender:
    if not file.is_file() or not interpreter.is_file():
        raise ValueError(f"'{label}={file}@{interpreter}' is not NAME=FILE.gguf@PYTHON, of two files that are there.")
    runtime = next((runtime for runtime in RUNTIMES if runtime.name == name), None)
    if runtime is None:
        raise ValueError(f"There is no runtime {name!r}; there are {', '.join(each.name for each in RUNTIMES)}.")
    return GgufContender(runtime, "", cache, label, file.resolve(), interpreter.absolute())
