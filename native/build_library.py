"""Builds the native library with CMake, into the package that loads it.

python native/build_library.py        # again after a change of the sources; `pip install -e .` does the same
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "runtime" / "reader_edge_runtime" / "execution" / "onnxruntime"
LIBRARY_NAME = "reader_edge_native.dll" if sys.platform == "win32" else "reader_edge_native.so"

_PROCESSORS = ("x86_64", "amd64", "aarch64", "arm64")
_MIN_CMAKE = (3, 18)


class BuildError(Exception):
    """One sentence: why the library cannot be built here."""


def build_requirements() -> list[str]:
    """The packages of PyPI that have to stand in for tools this machine lacks. None where nothing can be built."""
    if why_impossible() is not None:
        return []
    missing = [] if _has_cmake() else ["cmake>=3.18"]
    return missing if _has_generator() else [*missing, "ninja>=1.10"]


def why_impossible() -> str | None:
    """Why no library can be built on this machine, in one sentence. None where it should work."""
    if platform.machine().lower() not in _PROCESSORS:
        return f"There are no native kernels for {platform.machine()} processors."
    if sys.platform != "win32" and _compiler() is None:  # CMake finds Visual Studio by itself
        return f"No C++ compiler was found ({', '.join(command[0] for command in _compilers())})."
    return None


def build(out: Path, build_folder: Path) -> Path:
    """Build the library into the folder `out`; objects stay in `build_folder`, for the next build. Its path.

    Raises BuildError.
    """
    if reason := why_impossible():
        raise BuildError(reason)
    options = ["-D", "CMAKE_BUILD_TYPE=Release"]
    if not _has_own_generator():  # where Ninja lies: a folder built with pip's temporary one would ask for that again
        options += ["-G", "Ninja", "-D", f"CMAKE_MAKE_PROGRAM={shutil.which('ninja')}"]
    _run("cmake", "-S", HERE, "-B", build_folder, *options)
    _run("cmake", "--build", build_folder, "--config", "Release", "--parallel", str(os.cpu_count() or 1))
    _run("cmake", "--install", build_folder, "--config", "Release", "--prefix", out)
    return out / LIBRARY_NAME


def link(objects: Path, out: Path) -> Path:
    """Link an object file of C functions into a shared library, `out`. Its path.

    Raises BuildError.
    """
    compiler = _compiler()
    if compiler is None:
        raise BuildError("No C++ compiler was found to link with.")
    _run(*compiler, "-shared", "-s", "-nostartfiles", "-Wl,-z,defs,-z,noexecstack,-z,now", "-o", out, objects, "-lm")
    return out


def _compilers() -> list[list[str]]:
    command = os.environ.get("CXX", "").split()
    return [command] if command else [["c++"], ["g++"], ["clang++"]]


def _compiler() -> list[str] | None:
    """The first C++ compiler that is here, as CXX names it or by its usual name."""
    return next((command for command in _compilers() if shutil.which(command[0])), None)


def _run(*command: str | Path) -> None:
    try:
        done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be started ({error}).") from error
    if done.returncode:
        raise BuildError(f"The native kernels could not be compiled: {done.stdout[-4000:]}")


def _has_cmake() -> bool:
    try:
        output = subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    version = re.search(r"version (\d+)\.(\d+)", output)
    return version is not None and tuple(map(int, version.groups())) >= _MIN_CMAKE


def _has_generator() -> bool:
    return _has_own_generator() or shutil.which("ninja") is not None


def _has_own_generator() -> bool:
    """Whether CMake chooses how to build: as CMAKE_GENERATOR names it, or by Visual Studio."""
    return "CMAKE_GENERATOR" in os.environ or sys.platform == "win32"


if __name__ == "__main__":
    try:
        print(build(PACKAGE, HERE.parent / "build" / "native"))
    except BuildError as error:
        sys.exit(str(error))
