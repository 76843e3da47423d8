"""A device of IREE: its memory, and modules that run on it."""

import atexit
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

import iree.runtime as rt
import numpy as np

from reader_edge_runtime.arrays import Array, Float32Array
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.iree.target_machine import TargetMachine
from reader_edge_runtime.machine.processor import num_usable_cores

_ELEMENT_TYPES = {"float32": rt.HalElementType.FLOAT_32, "int32": rt.HalElementType.SINT_32}
_MEMORY = rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE
_USAGE = rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING
_SCOPE, _FUNCTION = "model", "main_graph"  # the importer's names of parameters and of the graph
_MAX_REASON = 200

_OPEN: "WeakSet[IreeDevice]" = WeakSet()


@atexit.register
def _close_all() -> None:
    """What is still open when Python's own objects go is told of on the terminal, at length."""
    for device in list(_OPEN):
        device.close()


class IreeDevice:
    """What modules share: the device, and the package's weights, which a processor reads where the file is mapped."""

    def __init__(
        self, target: TargetMachine, threads: int, weights: Path, parameters: Mapping[str, tuple[int, int]]
    ) -> None:
        """threads: of a processor; 0 is the usable cores. Raises ProviderError where there is no such device."""
        self.name = target.driver
        try:
            self._device = _opened(target.driver, threads or num_usable_cores())
        except (ValueError, RuntimeError) as error:
            raise ProviderError(f"IREE finds no device for {target.name} here ({_reason(error)}).") from error
        self._instance = rt.VmInstance()
        with weights.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        handle, index = rt.FileHandle.wrap_memory(content, readable=True, writable=False), rt.ParameterIndex()
        for name, (offset, num_bytes) in parameters.items():
            index.add_from_file_handle(name, handle, num_bytes, offset)
        self._parameters = rt.create_io_parameters_module(self._instance, index.create_provider(scope=_SCOPE))
        self._hal = rt.create_hal_module(self._instance, self._device)
        self._modules: list[IreeModule] = []
        _OPEN.add(self)

    def load(self, module: Path) -> "IreeModule":
        """Raises ProviderError where it is not for this runtime or device."""
        try:
            loaded = rt.VmModule.mmap(self._instance, str(module))
            context = rt.VmContext(self._instance, modules=[self._hal, self._parameters, loaded])
            function = loaded.lookup_function(_FUNCTION)
        except (ValueError, RuntimeError) as error:
            raise ProviderError(f"IREE cannot load '{module.name}' ({_reason(error)}): export again.") from error
        if function is None:
            raise ProviderError(f"'{module.name}' holds no graph: export the model again.")
        self._modules.append(IreeModule(self, context, function))
        return self._modules[-1]

    def close(self) -> None:
        """Let go of all that is IREE's, the modules first."""
        for module in self._modules:
            module.close()
        self._modules.clear()
        del self._hal, self._parameters, self._instance, self._device

    def imported(self, array: Array) -> Any:
        """An array as modules read it, without a copy; it begins with a page and must live as long."""
        buffer = self._device.allocator.import_host_allocation(array.reshape(-1), _MEMORY, _USAGE)
        return rt.HalBufferView(buffer, array.shape, _ELEMENT_TYPES[array.dtype.name])

    def sent(self, array: Array) -> Any:
        """A copy of an array."""
        element_type = _ELEMENT_TYPES[array.dtype.name]
        return self._device.allocator.allocate_buffer_copy(_MEMORY, _USAGE, self._device, array, element_type)

    def read(self, view: Any) -> Float32Array:
        """A result, valid as long as `view`."""
        found: Float32Array = view.map().asarray(view.shape, np.dtype(np.float32))
        return found


class IreeModule:
    """One graph, compiled for passes of one width."""

    def __init__(self, device: IreeDevice, context: Any, function: Any) -> None:
        self._device = device
        self._context = context
        self._function = function

    def close(self) -> None:
        del self._function, self._context

    def call(self, arguments: Sequence[Any], num_results: int) -> list[Any]:
        """Results as they lie on the device. Raises ProviderError."""
        given, made = rt.VmVariantList(len(arguments)), rt.VmVariantList(num_results)
        for argument in arguments:
            given.push_ref(argument)
        try:
            self._context.invoke(self._function, given, made)
        except (ValueError, RuntimeError) as error:
            raise ProviderError(f"IREE failed in a pass ({_reason(error)}): export the model again.") from error
        return [made.get_as_object(index, rt.HalBufferView) for index in range(num_results)]


def _opened(driver: str, threads: int) -> Any:
    if driver == "local" and threads == 1:
        return rt.get_driver("local-sync").create_default_device()
    if driver == "local":
        rt.flags.parse_flags(f"--task_topology_group_count={threads}")  # of devices that are made from here on
        driver = "local-task"
    return rt.get_driver(driver).create_default_device()


def _reason(error: Exception) -> str:
    """The first line of what IREE says, behind the place in its source."""
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return "".join(char for char in line.rpartition("; ")[2] if char.isprintable())[:_MAX_REASON]
