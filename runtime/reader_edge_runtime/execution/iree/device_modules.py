"""Modules of a package on a device: one for each width of passes and number of KV rows that they see.

No other serves meanwhile, so that a pass waits where its module is compiled; few sizes keep that rare.
"""

import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path

from reader_edge_runtime.errors import InstallationError, ProviderError
from reader_edge_runtime.execution.iree.device_runner import DeviceRunner
from reader_edge_runtime.execution.iree.iree_device import IreeDevice, IreeModule
from reader_edge_runtime.execution.iree.module_check import ModuleCheck
from reader_edge_runtime.execution.iree.module_files import ModuleFiles
from reader_edge_runtime.execution.iree.module_index import DEVICE_WIDTHS, LEAST_VISIBLE, ModuleIndex, module_name
from reader_edge_runtime.execution.iree.target_machine import TargetMachine
from reader_edge_runtime.execution.iree.wheel import compiler_version
from reader_edge_runtime.package.manifest import WEIGHTS_NAME
from reader_edge_runtime.package.model_package import ModelPackage

_MAX_LOADED = 2 * len(DEVICE_WIDTHS)  # each has the weights in memory of its own


class DeviceModules:
    """Each is compared with ONNX Runtime before it serves; see `runner`."""

    def __init__(self, package: ModelPackage, index: ModuleIndex, target: TargetMachine) -> None:
        """Load those for short texts. Raises ProviderError or InstallationError."""
        self._package = package
        self._index = index
        self._target = target
        self._files = ModuleFiles(package, index, target)
        self.device = IreeDevice(target, 0, package.path(WEIGHTS_NAME), index.parameters)
        self._modules: dict[tuple[int, int], IreeModule] = {}  # by width and rows, the last used last
        for width in DEVICE_WIDTHS:
            self.module(width, LEAST_VISIBLE)
        self.runner = DeviceRunner(package.manifest, index, self.device, self.module)

    def module(self, width: int, num_visible: int) -> IreeModule:
        """Raises ProviderError or InstallationError, also where what was compiled is wrong."""
        module = self._modules.pop((width, num_visible), None) or self._opened(width, num_visible)
        self._modules[width, num_visible] = module
        if len(self._modules) > _MAX_LOADED:
            del self._modules[next(iter(self._modules))]
        return module

    def _opened(self, width: int, num_visible: int) -> IreeModule:
        compare = partial(self._compared, width, num_visible)
        if self._files.is_shipped(width, num_visible):
            return compare(self._package.path(module_name(width, num_visible)))
        kept = self._files.kept(width, num_visible)
        if kept is not None:
            with suppress(ProviderError):  # spoilt since it was compared: it is compiled again
                return compare(kept)
        size = f"{width} nodes and {num_visible} rows"
        if compiler_version() is None:
            raise InstallationError(
                f"There is no module for {size} here: pip install 'reader-edge[iree-export]', which compiles it, "
                "or use --provider cpu."
            )
        warnings.warn(f"Compiling for {self._target.name}, {size}, once: this may take a minute.", stacklevel=2)
        made: list[IreeModule] = []
        self._files.compiled(width, lambda path: made.append(compare(path)), num_visible)
        return made[0]

    def _compared(self, width: int, num_visible: int, path: Path) -> IreeModule:
        """A module of a file. Raises ProviderError where it is wrong."""
        module, manifest = self.device.load(path), self._package.manifest
        alone = DeviceRunner(manifest, self._index, self.device, lambda *size: module, (width,), num_visible)
        fault = ModuleCheck(self._package, num_visible - width).fault(path, alone, width)
        if fault is not None:
            size = f"{width} nodes and {num_visible} rows"
            raise ProviderError(f"The module of {size} for {self._target.name} is wrong: {fault}. Use --provider cpu.")
        return module
