"""Compiles what a wheel brings: native kernels in C++ (native/), and those of drafting, as machine code.

A wheel with native kernels is for one kind of machine. Without a C++ compiler it is a wheel of plain Python, which runs
everywhere, slower. An editable installation gets native kernels alone: those of drafting change, and are compiled when
they are first used.
"""

import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))

from native.build_library import PACKAGE, BuildError, build, build_requirements, link

_RUNTIME = "reader_edge_runtime"
_MACHINE_CODE = f"{_RUNTIME}.drafting.machine_code"


class KernelsHook(BuildHookInterface[Any]):
    def dependencies(self) -> list[str]:
        """What the native kernels are built with; numba, for those of drafting, is named in pyproject.toml."""
        return build_requirements()

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="reader-edge-kernels-"))
        if version == "editable":
            self._native_library(PACKAGE, Path(self.root, "build", "native"))
            return
        with ThreadPoolExecutor(1) as beside:  # CMake's processes work while numba does
            native = beside.submit(self._native_library, self._folder / "native", self._folder / "build")
            drafting = self._drafting_kernels()
        build_data["force_include"][str(drafting)] = f"{_MACHINE_CODE.replace('.', '/')}/{drafting.name}"
        if library := native.result():
            package = PACKAGE.relative_to(Path(self.root, "runtime"))
            build_data["force_include"][str(library)] = (package / library.name).as_posix()
            build_data["pure_python"] = False
            platform = self.build_config.builder.get_best_matching_tag().rpartition("-")[2]
            build_data["tag"] = f"py3-none-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self._folder)

    def _native_library(self, out: Path, build_folder: Path) -> Path | None:
        """The library, built into a folder; None where that cannot be."""
        try:
            return build(out, build_folder)
        except BuildError as error:
            self.app.display_warning(f"{error} reader-edge is installed without native kernels, and runs slower.")
            return None

    def _drafting_kernels(self) -> Path:
        """Of this machine's kind: a shared library on Linux with a compiler, else an object file, which LLVM loads."""
        package = ModuleType(_RUNTIME)  # without what the whole package imports
        package.__path__ = [str(Path(self.root) / "runtime" / _RUNTIME)]
        sys.modules[_RUNTIME] = package
        objects: Path = import_module(f"{_MACHINE_CODE}.compiler").compile_into(self._folder)
        if sys.platform != "linux":  # tried nowhere else
            return objects
        try:
            return link(objects, objects.with_suffix(".so"))
        except BuildError as error:
            self.app.display_warning(f"{error} Drafting needs the extra `jit` then.")
            return objects
