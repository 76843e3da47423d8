"""Who is compared by what each instruction set is worth: reader-edge and llama.cpp, both held to the same one."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.runtimes import RUNTIMES, Contender

# By the names of the native kernels, what llama.cpp is compiled with. None: not compared, since its kernels for AMX end
# with a segmentation fault on some virtual machines.
_PLAIN = "-DGGML_NATIVE=OFF"  # AVX2, FMA, F16C and BMI2 are on then
LLAMA_CPP_FLAGS: dict[str, str | None] = {
    "avx2": _PLAIN,
    "avx-vnni": f"{_PLAIN} -DGGML_AVX_VNNI=ON",
    "avx512-vnni": f"{_PLAIN} -DGGML_AVX_VNNI=ON -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON",
    "amx": None,
}
PRECISIONS = {"reader-edge": ("int8", "int4"), "llama.cpp": ("q8_0", "q4_0")}
SHAPE = "qwen2.5-0.5b"


@dataclass(frozen=True, slots=True)
class SetContender(Contender):
    """A contender with the kernels of one instruction set: its variable, or an environment of its own to compile in."""

    instructions: str

    @property
    def name(self) -> str:
        return f"{self.runtime.name} {self.precision} {self.instructions}"

    @property
    def python(self) -> Path:
        usual = Contender(self.runtime, self.precision, self.cache).python
        if not self.runtime.requirements:
            return usual
        return self.cache / "environments" / f"{self.runtime.name}-{self.instructions}" / "bin" / "python"

    @property
    def environment(self) -> dict[str, str]:
        variables = Contender(self.runtime, self.precision, self.cache).environment
        if "PYTHONPATH" in variables:  # where this environment may have its kernels from
            variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], os.environ.get("PYTHONPATH", "")])
        return variables | {"READER_EDGE_INSTRUCTIONS": self.instructions}

    @property
    def build_environment(self) -> dict[str, str]:
        """The compiler's flags; wheels in pip's cache would be of others."""
        return {"CMAKE_ARGS": LLAMA_CPP_FLAGS[self.instructions] or "", "PIP_NO_CACHE_DIR": "1"}


def set_contenders(cache: Path) -> list[SetContender]:
    """Both runtimes at every set; reader-edge with the native kernels of this environment."""
    ours = replace(RUNTIMES[0], requirements=())
    theirs = next(runtime for runtime in RUNTIMES if runtime.name == "llama.cpp")
    theirs = replace(theirs, requirements=theirs.requirements[:1])  # models are converted in the usual environment
    return [
        SetContender(runtime, precision, cache, name)
        for name, flags in LLAMA_CPP_FLAGS.items()
        for runtime in (ours, theirs)
        for precision in PRECISIONS[runtime.name]
        if runtime is ours or flags is not None
    ]


def converted_contenders(cache: Path) -> list[Contender]:
    """Those whose models they all share."""
    return [Contender(runtime, each, cache) for runtime in RUNTIMES for each in PRECISIONS.get(runtime.name, ())]
