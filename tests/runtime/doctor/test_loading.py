"""What it means when a module does not load, or ends the process that loads it: one finding with a remedy."""

from pathlib import Path
from typing import Any

import pytest

from reader_edge_runtime.doctor.check_result import Severity
from reader_edge_runtime.doctor.loading import failed_loading, fatal_loading
from tests.runtime.doctor.described import described, install, write


@pytest.mark.parametrize(
    ("error", "found", "remedy"),
    [
        (
            "ImportError: DLL load failed while importing onnxruntime_pybind11_state",
            "Windows cannot load onnxruntime 1.20.0, most often for want of Microsoft's Visual C++ libraries.",
            "Install the Visual C++ Redistributable for x64, the latest.",
        ),
        (
            "ImportError: cannot enable executable stack as shared object requires",
            "onnxruntime 1.20.0 asks for an executable stack, which this system's C library refuses.",
            "pip install --upgrade onnxruntime",
        ),
        (
            "AttributeError: module 'onnxruntime' has no attribute 'InferenceSession'",
            "The module onnxruntime is a remnant of wheels that overwrote each other: it has no InferenceSession.",
            "pip uninstall every onnxruntime wheel, then pip install 'reader-edge[cpu]' or 'reader-edge[gpu]'.",
        ),
        (
            "OSError: libz.so.1 is missing",
            "onnxruntime 1.20.0 cannot be loaded (OSError: libz.so.1 is missing).",
            "pip install --force-reinstall --no-deps onnxruntime==1.20.0",
        ),
    ],
    ids=["visual c++", "executable stack", "remnant", "other"],
)
def test_an_error_is_told_with_what_helps(error: str, found: str, remedy: str, tmp_path: Path) -> None:
    install(tmp_path / "site", "onnxruntime", "1.20.0")
    told = failed_loading("onnxruntime", error, described(tmp_path, search_path=(str(tmp_path / "site"),)))
    assert (told.severity, told.sentence, told.remedy) == (Severity.BROKEN, found, remedy)


def test_a_module_of_no_wheel_is_called_by_its_own_name(tmp_path: Path) -> None:
    told = failed_loading("llvmlite.binding", "OSError: odd", described(tmp_path, search_path=(str(tmp_path),)))
    assert told.sentence == "llvmlite cannot be loaded (OSError: odd)."
    assert told.remedy == "pip install --force-reinstall --no-deps llvmlite"


@pytest.mark.parametrize(
    ("returncode", "files", "changes", "found"),
    [
        (-11, {}, {}, "Loading llvmlite ends the process (signal 11)."),
        (3, {}, {}, "Loading llvmlite ends the process (exit code 3)."),
        (-4, {"proc__cpuinfo": "model name : Old\nflags : fpu sse4_2 avx"}, {}, "(Old has no AVX2, FMA)"),
        (0xC000001D, {}, {"system": "Windows"}, "built for a newer processor than this one: loading it"),
        (-4, {"proc__cpuinfo": "Features : fp asimd"}, {"machine": "aarch64"}, "has no half precision, dot products)"),
        (-4, {"proc__cpuinfo": "flags : x"}, {"machine": "riscv64"}, "built for a newer processor than this one: load"),
    ],
)
def test_an_end_is_told_with_what_the_processor_lacks(
    returncode: int, files: dict[str, str], changes: dict[str, Any], found: str, tmp_path: Path
) -> None:
    write(tmp_path, **files)
    told = fatal_loading("llvmlite.binding", returncode, described(tmp_path, search_path=(str(tmp_path),), **changes))
    assert (told.severity, found in told.sentence) == (Severity.BROKEN, True), told.sentence
