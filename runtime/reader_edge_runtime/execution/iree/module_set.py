"""The modules of a package on this machine: those that it ships, those that were compiled here, and how they come.

A width that passes miss is compiled in the background, where the compiler is here. Meanwhile others serve: a wider
module, or several passes of a narrower one.
"""

import os
import threading
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path

from reader_edge_runtime.atomic_file import write_file
from reader_edge_runtime.errors import ProviderError, ReaderEdgeError
from reader_edge_runtime.execution.iree.iree_device import IreeDevice, IreeModule
from reader_edge_runtime.execution.iree.iree_runner import IreeRunner
from reader_edge_runtime.execution.iree.module_check import ModuleCheck
from reader_edge_runtime.execution.iree.module_files import (
    COMPILED_WIDTHS,
    WIDTHS,
    ModuleFiles,
    ModuleIndex,
    module_name,
)
from reader_edge_runtime.execution.iree.target_machine import TargetMachine
from reader_edge_runtime.execution.iree.wheel import compiler_version
from reader_edge_runtime.package.manifest import WEIGHTS_NAME
from reader_edge_runtime.package.model_package import ModelPackage


class ModuleSet:
    """Modules of a package for a target, on a device; see `runner`."""

    def __init__(self, package: ModelPackage, index: ModuleIndex, target: TargetMachine, threads: int) -> None:
        """Load what is there, compared with ONNX Runtime; compile the usual widths where nothing is.

        Raises ProviderError or InstallationError.
        """
        self._package = package
        self._index = index
        self._target = target
        self._files = ModuleFiles(package, index, target)
        self._device = self._opened(threads)
        self._modules: dict[int, IreeModule] = {}
        self._compiled: dict[int, Path] = {}  # in the background, and not loaded yet
        self._requested: set[int] = set()
        self._thread: threading.Thread | None = None
        check = ModuleCheck(package)  # not kept: it may hold the package once more
        for width in WIDTHS:
            if self._files.is_shipped(width):
                self._add(width, package.path(module_name(width)), check)
            elif (kept := self._files.kept(width)) is not None:
                try:
                    self._add(width, kept, check)
                except ProviderError:  # spoilt since it was compared: it is compiled again when it is missed
                    with suppress(OSError):
                        kept.unlink()
        if not self._modules:
            warnings.warn(f"Compiling for {target.name}, once: this may take a minute.", stacklevel=2)
            for width in COMPILED_WIDTHS:
                self._files.compiled(width, partial(self._add, width, check=check))
        self.runner = IreeRunner(package.manifest, index, self._device, self._modules, self._miss)

    def _add(self, width: int, path: Path, check: ModuleCheck) -> None:
        """Load a module, or raise ProviderError where it is wrong."""
        module = self._device.load(path)
        alone = IreeRunner(self._package.manifest, self._index, self._device, {width: module})
        fault = check.fault(path, alone, width)
        if fault is not None:
            raise ProviderError(f"The module of {width} for {self._target.name} is wrong: {fault}. Use --provider cpu.")
        self._modules[width] = module

    def _miss(self, width: int) -> None:
        """Have a width compiled, and load what has been."""
        for ready in list(self._compiled):
            with suppress(ProviderError):
                self._modules[ready] = self._device.load(self._compiled.pop(ready))
        if width in self._requested or (self._thread is not None and self._thread.is_alive()):
            return
        self._requested.add(width)
        if compiler_version() is not None and os.access(self._refusal(width), os.F_OK):
            return
        if compiler_version() is None:
            widths = ", ".join(map(str, sorted(self._modules)))
            warnings.warn(
                f"There are modules for passes of {widths} nodes alone; pip install 'reader-edge[iree-export]' has "
                "others compiled when they are needed.",
                stacklevel=2,
            )
            self._requested.update(WIDTHS)
            return
        self._thread = threading.Thread(target=self._compile_aside, args=(width,), name="reader-edge iree", daemon=True)
        self._thread.start()

    def _compile_aside(self, width: int) -> None:
        """In a thread: compile, compare, and hand over."""
        try:
            self._compiled[width] = self._files.compiled(width, partial(self._compare, width), is_aside=True)
        except ReaderEdgeError as error:
            warnings.warn(str(error), stacklevel=2)

    def _compare(self, width: int, path: Path) -> None:
        """On a device of its own; what is refused is not compiled again. Raises ProviderError."""
        device, least = self._opened(1), min(self._modules)
        of_least = self._package.path(module_name(least)) if self._files.is_shipped(least) else self._files.kept(least)
        manifest, index = self._package.manifest, self._index
        alone = IreeRunner(manifest, index, device, {width: device.load(path)})
        known = IreeRunner(manifest, index, device, {least: device.load(of_least or path)})
        check = ModuleCheck(self._package)
        fault = check.fault(path, alone, width)
        if fault is None and not check.has_equal_bits(alone, known, width):
            fault = f"its bits are not those of the module of {least}"
        if fault is not None:
            with suppress(OSError):
                write_file(self._refusal(width), b"")
            raise ProviderError(f"The module of {width} for {self._target.name} is not used: {fault}.")

    def _refusal(self, width: int) -> Path:
        """A file that is there where a module of this width was refused."""
        return self._files.cached(width).with_suffix(".refused")

    def _opened(self, threads: int) -> IreeDevice:
        weights = self._package.path(WEIGHTS_NAME)
        return IreeDevice(threads, weights, self._index.parameters)
