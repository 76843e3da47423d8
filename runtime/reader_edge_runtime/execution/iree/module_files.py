"""A package's modules as files: those that it ships, and those that were compiled here, in the user's cache folder."""

import os
from collections.abc import Callable
from pathlib import Path

from reader_edge_runtime.atomic_file import new_file, write_failure
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.iree.compilation import compile_module, module_key
from reader_edge_runtime.execution.iree.module_index import ModuleIndex, mlir_name, module_name
from reader_edge_runtime.execution.iree.target_machine import TargetMachine
from reader_edge_runtime.execution.iree.wheel import compiler_version
from reader_edge_runtime.machine.cache_folder import cache_folder, code_fault, make_own
from reader_edge_runtime.package.model_package import ModelPackage


class ModuleFiles:
    """Those for one target."""

    def __init__(self, package: ModelPackage, index: ModuleIndex, target: TargetMachine) -> None:
        self._package = package
        self._index = index
        self._target = target

    def is_shipped(self, width: int) -> bool:
        return self._target.name == self._index.target and module_name(width) in self._package.manifest.files

    def kept(self, width: int) -> Path | None:
        """A module that was compiled here."""
        if compiler_version() is None:
            return None
        path = self.cached(width)
        return path if os.access(path, os.R_OK) and path.is_file() else None

    def compiled(self, width: int, check: Callable[[Path], None], is_aside: bool = False) -> Path:
        """Compile a module, and keep it where `check` does not raise. Raises ProviderError or InstallationError."""
        path = self.cached(width)
        module = compile_module(self._package.path(mlir_name(width)), self._target, is_aside)
        try:
            make_own(path.parent, cache_folder())
            with new_file(path, 0o600, keeps_mode=False) as file:
                file.write(module)
                file.flush()
                check(Path(file.name))
        except OSError as error:
            elsewhere = "set XDG_CACHE_HOME to a folder that can be written"
            raise ProviderError(write_failure(path, error, elsewhere=elsewhere)) from error
        return path

    def cached(self, width: int) -> Path:
        """Raises ProviderError where others could have put their own code."""
        key = module_key(self._package.path(mlir_name(width)), self._target)
        path = cache_folder() / "iree" / f"{key}.vmfb"
        if fault := code_fault(path, cache_folder()):
            raise ProviderError(fault)
        return path
