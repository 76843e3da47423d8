"""Compiles the kernels of drafting for every kind of machine into the wheel, so that no user's machine has to."""

import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsHook(BuildHookInterface[Any]):
    """An editable installation goes without: its kernels change, and are compiled when they are first used."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="reader-edge-kernels-"))
        if version == "editable":
            return
        package = ModuleType("reader_edge_runtime")  # without what the whole package imports
        package.__path__ = [str(Path(self.root) / "runtime" / package.__name__)]
        sys.modules[package.__name__] = package
        machine_code = f"{package.__name__}.drafting.machine_code"
        import_module(f"{machine_code}.compiler").compile_into(self._folder, is_for_all=True)
        for path in self._folder.iterdir():
            build_data["force_include"][str(path)] = f"{machine_code.replace('.', '/')}/{path.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self._folder)
