"""A device of IREE: its memory, and modules that run on it."""

import atexit
import ctypes
import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

import iree.runtime as rt
import numpy as np

from reader_edge_runtime.arrays import Array, Float32Array
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.iree.target_machine import TargetMachine
from reader_edge_runtime.machine.processor import num_threads

_ELEMENT_TYPES = {"float32": rt.HalElementType.FLOAT_32, "int32": rt.HalElementType.SINT_32}
_MEMORY = rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE
_USAGE = rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING
_STAGING = rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE
_SCOPE, _FUNCTION = "model", "main_graph"  # the importer's names of parameters and of the graph
_MAX_REASON = 200
_FAILURES = (OSError, ValueError, RuntimeError, LookupError, MemoryError)  # as IREE's kinds of status are told

_OPEN: "WeakSet[_Closable]" = WeakSet()


@atexit.register
def _close_all() -> None:
    """IREE prints a long report of each of its objects that outlives Python's."""
    for each in list(_OPEN):
        each.close()


def _leave_to_parent() -> None:
    """In a forked process there are no threads of IREE's: to let go of anything would wait for them."""
    for each in list(_OPEN):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each.held))  # never let go of
        each.held = []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


class _Closable:
    """Holds objects of IREE's, and what they need, in the order in which they are let go of: another one crashes."""

    def __init__(self, *held: Any) -> None:
        self.held: list[Any] = list(held)
        _OPEN.add(self)

    @property
    def objects(self) -> list[Any]:
        """Raises ProviderError in a forked process, which has none of them."""
        if not self.held:
            raise ProviderError("IREE's devices stay with the process that opened them: load the model again here.")
        return self.held

    def close(self) -> None:
        while self.held:
            del self.held[0]

    __del__ = close


class IreeDevice:
    """What modules share: the device, and the package's weights, which a processor reads where the file is mapped.

    name: of IREE's driver, "local" on a processor. description: which of its devices.
    """

    def __init__(
        self, target: TargetMachine, threads: int, weights: Path, parameters: Mapping[str, tuple[int, int]]
    ) -> None:
        """threads: of a processor; 0 is the usable cores. Raises ProviderError where there is no such device."""
        self.name = target.driver
        try:
            device = _opened(target.driver, num_threads(threads))
            self.description = "" if self._is_processor else _description(target.driver)
        except _FAILURES as error:
            why = f"IREE finds no device for {target.name} here ({_reason(error)})"
            raise ProviderError(f"{why}: use --provider cpu.") from error
        instance = rt.VmInstance()
        with weights.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        handle, index = rt.FileHandle.wrap_memory(content, readable=True, writable=False), rt.ParameterIndex()
        for name, (offset, num_bytes) in parameters.items():
            index.add_from_file_handle(name, handle, num_bytes, offset)
        modules = [
            rt.create_hal_module(instance, device),
            rt.create_io_parameters_module(instance, index.create_provider(scope=_SCOPE)),
        ]
        self._held = _Closable(modules, instance, device, content)

    def load(self, module: Path) -> "IreeModule":
        """Raises ProviderError where it is not for this runtime or device."""
        modules, instance, *_ = self._held.objects
        try:
            loaded = rt.VmModule.copy_buffer(instance, module.read_bytes())
            context = rt.VmContext(instance, modules=[*modules, loaded])
            function = loaded.lookup_function(_FUNCTION)
        except _FAILURES as error:
            raise ProviderError(f"IREE cannot load '{module.name}' ({_reason(error)}): export again.") from error
        if function is None:
            raise ProviderError(f"'{module.name}' holds no graph: export the model again.")
        return IreeModule(self, _Closable([], function, context, loaded, self))

    def imported(self, array: Array) -> "_Closable":
        """An array as modules read it, without a copy; it begins with a page and must live as long."""
        buffer = self._allocator.import_host_allocation(array.reshape(-1), _MEMORY, _USAGE)
        view = rt.HalBufferView(buffer, array.shape, _ELEMENT_TYPES[array.dtype.name])
        del buffer
        return _Closable(view, array, self)

    def sent(self, array: Array) -> Any:
        """A copy of an array."""
        element_type = _ELEMENT_TYPES[array.dtype.name]
        memory = (_MEMORY, _USAGE) if self._is_processor else (rt.MemoryType.DEVICE_LOCAL, rt.BufferUsage.DEFAULT)
        return self._allocator.allocate_buffer_copy(*memory, self._held.objects[2], array, element_type)

    def in_host_memory(self, views: Sequence[Any]) -> list[Any]:
        """Results where the host can read them: as they are on a processor, copied from other devices."""
        if self._is_processor:
            return list(views)
        device = self._held.objects[2]
        copies = [device.allocator.allocate_buffer(_STAGING, _USAGE, view.byte_length) for view in views]
        done = device.create_semaphore(0)
        for number, (view, copy) in enumerate(zip(views, copies, strict=True), 1):
            device.queue_copy(view.get_buffer(), copy, [(done, number - 1)], [(done, number)])
        done.wait(len(copies))
        return copies

    @property
    def _is_processor(self) -> bool:
        return self.name == "local"

    @property
    def _allocator(self) -> Any:
        return self._held.objects[2].allocator


class IreeModule:
    """One graph, compiled for passes of one width. held: its last results, the function and what that is of."""

    def __init__(self, device: IreeDevice, held: _Closable) -> None:
        self._device = device
        self._held = held

    def call(self, arguments: Sequence[Array | _Closable], num_results: int) -> list[Float32Array]:
        """Results in the host's memory, valid until the next call. Raises ProviderError."""
        _, function, context, *_ = self._held.objects
        given, made = rt.VmVariantList(len(arguments)), rt.VmVariantList(num_results)
        for argument in arguments:
            given.push_ref(argument.held[0] if isinstance(argument, _Closable) else self._device.sent(argument))
        try:
            context.invoke(function, given, made)
        except _FAILURES as error:
            raise ProviderError(f"IREE failed in a pass ({_reason(error)}): export the model again.") from error
        views = [made.get_as_object(index, rt.HalBufferView) for index in range(num_results)]
        buffers, shapes = self._device.in_host_memory(views), [view.shape for view in views]
        self._held.held[0] = buffers  # else their memory is another pass's at once
        return [each.map().asarray(shape, np.dtype(np.float32)) for each, shape in zip(buffers, shapes, strict=True)]


def _opened(driver: str, threads: int) -> Any:
    if driver == "local" and threads == 1:
        return rt.get_driver("local-sync").create_default_device()
    if driver == "local":
        rt.flags.parse_flags(f"--task_topology_group_count={threads}")  # of devices that are made from here on
        driver = "local-task"
    return rt.get_driver(driver).create_default_device()


def _description(driver: str) -> str:
    return str(next((each["name"] for each in rt.get_driver(driver).query_available_devices()), "unknown"))


def _reason(error: Exception) -> str:
    """What IREE says behind the place in its source and the kind of failure, but for where it was then."""
    said = str(error) or type(error).__name__
    _, _, reason = said.partition("; ")
    first = (reason or said).partition("; while ")[0].splitlines()[0]
    return "".join(char for char in first if char.isprintable())[:_MAX_REASON]
