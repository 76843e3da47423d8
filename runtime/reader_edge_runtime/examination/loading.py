"""What it means when a module cannot be loaded, or ends the process that loads it."""

from reader_edge_runtime.examination.finding import Finding, Severity
from reader_edge_runtime.examination.surroundings import Surroundings
from reader_edge_runtime.machine.processor import CPUINFO, processor_flags, processor_name

# In the order in which they are loaded: the last needs the first.
MODULES = ("numpy", "llvmlite.binding", "tokenizers", "onnxruntime")

_ILLEGAL_INSTRUCTION = (-4, 0xC000001D)  # as POSIX and Windows tell it
_FLAGS = {  # what wheels may need, the oldest first, by what /proc/cpuinfo calls it
    "x86_64": {"sse4_2": "SSE4.2", "avx": "AVX", "avx2": "AVX2", "fma": "FMA"},
    "aarch64": {"asimd": "NEON", "asimdhp": "half precision", "asimddp": "dot products"},
}


def failed_loading(module: str, error: str, surroundings: Surroundings) -> Finding:
    """Of a module that an exception kept from loading. error: its type and words."""
    wheel = _wheel(module, surroundings)
    if "DLL load failed" in error:
        found = f"Windows cannot load {wheel}, most often for want of Microsoft's Visual C++ libraries."
        return Finding("loading", Severity.BROKEN, found, "Install the Visual C++ Redistributable for x64, the latest.")
    if "executable stack" in error:
        found = f"{wheel} asks for an executable stack, which this system's C library refuses."
        return Finding("loading", Severity.BROKEN, found, f"pip install --upgrade {_distribution(module)}")
    if "InferenceSession" in error:
        found = "The module onnxruntime is a remnant of wheels that overwrote each other: it has no InferenceSession."
        remedy = "pip uninstall every onnxruntime wheel, then pip install 'reader-edge[cpu]' or 'reader-edge[gpu]'."
        return Finding("loading", Severity.BROKEN, found, remedy)
    return Finding(
        "loading", Severity.BROKEN, f"{wheel} cannot be loaded ({error:.200}).", _again(module, surroundings)
    )


def fatal_loading(module: str, returncode: int, surroundings: Surroundings) -> Finding:
    """Of a module that ended the process. returncode: as `subprocess` has it."""
    wheel = _wheel(module, surroundings)
    if returncode not in _ILLEGAL_INSTRUCTION:
        found = f"Loading {wheel} ends the process ({told_end(returncode)})."
        return Finding("loading", Severity.BROKEN, found, _again(module, surroundings))
    cpuinfo = surroundings.root / CPUINFO.relative_to("/")
    flags = processor_flags(cpuinfo)
    lacking = [name for flag, name in _FLAGS.get(surroundings.machine, {}).items() if flag not in flags]
    lack = f" ({processor_name(cpuinfo)} has no {', '.join(lacking)})" if lacking and flags else ""
    return Finding(
        "loading",
        Severity.BROKEN,
        f"{wheel} is built for a newer processor than this one{lack}: loading it is an illegal instruction.",
        "Take an older wheel of it, or one that is built on this machine.",
    )


def told_end(returncode: int) -> str:
    """How a process ended, in words."""
    return f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"


def _again(module: str, surroundings: Surroundings) -> str:
    """How to install the same version again."""
    found = surroundings.distribution(_distribution(module))
    pinned = _distribution(module) if found is None else f"{found.metadata['Name']}=={found.version}"
    return f"pip install --force-reinstall --no-deps {pinned}"


def _distribution(module: str) -> str:
    return module.partition(".")[0]


def _wheel(module: str, surroundings: Surroundings) -> str:
    found = surroundings.distribution(_distribution(module))
    return _distribution(module) if found is None else f"{found.metadata['Name']} {found.version}"
