"""Imports every module that reader-edge needs, in a process of its own, and explains one that does not load."""

from importlib import import_module

from reader_edge_runtime.doctor.check_result import CheckResult, Severity, report_result, report_step
from reader_edge_runtime.doctor.environment import Environment
from reader_edge_runtime.drafting.machine_code.library import linked_library
from reader_edge_runtime.machine.processor import CPUINFO, processor_flags, processor_name

# In the order in which they are loaded: the last needs the first.
MODULES = ("numpy", "tokenizers", "onnxruntime")
_KERNELS_LOADER = "llvmlite.binding"  # where no shared library of kernels came with the wheel

_ILLEGAL_INSTRUCTION = (-4, 0xC000001D)  # as POSIX and Windows tell it
_FLAGS = {  # what wheels may need, the oldest first, by what /proc/cpuinfo calls it
    "x86_64": {"sse4_2": "SSE4.2", "avx": "AVX", "avx2": "AVX2", "fma": "FMA"},
    "aarch64": {"asimd": "NEON", "asimdhp": "half precision", "asimddp": "dot products"},
}


def main() -> None:
    """Report the first module that cannot be loaded: others may need it."""
    environment = Environment.here()
    modules = MODULES if linked_library() else (*MODULES, _KERNELS_LOADER)
    for module in modules:
        report_step(module)
        try:
            loaded = import_module(module)
            if module == "onnxruntime":
                loaded.InferenceSession  # noqa: B018 (a remnant has none)
        except Exception as error:  # whatever a module raises as it loads
            report_result(failed_loading(module, f"{type(error).__name__}: {error}", environment))
            return
    named = ", ".join(module.partition(".")[0] for module in modules)
    report_result(CheckResult("loading", Severity.WELL, f"{named} load."))


def failed_loading(module: str, error: str, environment: Environment) -> CheckResult:
    """Of a module that an exception kept from loading. error: its type and words."""
    wheel = _wheel(module, environment)
    if "DLL load failed" in error:
        found = f"Windows cannot load {wheel}, most often for want of Microsoft's Visual C++ libraries."
        return CheckResult(
            "loading", Severity.BROKEN, found, "Install the Visual C++ Redistributable for x64, the latest."
        )
    if "executable stack" in error:
        found = f"{wheel} asks for an executable stack, which this system's C library refuses."
        return CheckResult("loading", Severity.BROKEN, found, f"pip install --upgrade {_distribution(module)}")
    if "InferenceSession" in error:
        found = "The module onnxruntime is a remnant of wheels that overwrote each other: it has no InferenceSession."
        remedy = "pip uninstall every onnxruntime wheel, then pip install 'reader-edge[cpu]' or 'reader-edge[gpu]'."
        return CheckResult("loading", Severity.BROKEN, found, remedy)
    return CheckResult(
        "loading", Severity.BROKEN, f"{wheel} cannot be loaded ({error:.200}).", _again(module, environment)
    )


def fatal_loading(module: str, returncode: int, environment: Environment) -> CheckResult:
    """Of a module that ended the process. returncode: as `subprocess` has it."""
    wheel = _wheel(module, environment)
    if returncode not in _ILLEGAL_INSTRUCTION:
        found = f"Loading {wheel} ends the process ({end_words(returncode)})."
        return CheckResult("loading", Severity.BROKEN, found, _again(module, environment))
    cpuinfo = environment.root / CPUINFO.relative_to("/")
    flags = processor_flags(cpuinfo)
    lacking = [name for flag, name in _FLAGS.get(environment.machine, {}).items() if flag not in flags]
    lack = f" ({processor_name(cpuinfo)} has no {', '.join(lacking)})" if lacking and flags else ""
    return CheckResult(
        "loading",
        Severity.BROKEN,
        f"{wheel} is built for a newer processor than this one{lack}: loading it is an illegal instruction.",
        "Take an older wheel of it, or one that is built on this machine.",
    )


def end_words(returncode: int) -> str:
    """How a process ended, in words."""
    return f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"


def _again(module: str, environment: Environment) -> str:
    """How to install it, the same version if it is there."""
    found = environment.distribution(_distribution(module))
    if found is None and module == _KERNELS_LOADER:
        return "pip install 'reader-edge[jit]': without it nothing is drafted."
    pinned = _distribution(module) if found is None else f"{found.metadata['Name']}=={found.version}"
    return f"pip install --force-reinstall --no-deps {pinned}"


def _distribution(module: str) -> str:
    return module.partition(".")[0]


def _wheel(module: str, environment: Environment) -> str:
    found = environment.distribution(_distribution(module))
    return _distribution(module) if found is None else f"{found.metadata['Name']} {found.version}"


if __name__ == "__main__":
    main()
