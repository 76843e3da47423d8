"""The processor as a device of IREE: its memory, and modules that run on it."""

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
from reader_edge_runtime.machine.processor import num_threads

_ELEMENT_TYPES = {"float32": rt.HalElementType.FLOAT_32, "int32": rt.HalElementType.SINT_32}
_MEMORY = rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE
_USAGE = rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING
_SCOPE, _FUNCTION = "model", "main_graph"  # the importer's names of parameters and of the graph
_MAX_REASON = 200
_FAILURES = (OSError, ValueError, RuntimeError, LookupError, MemoryError)  # as IREE's kinds of status are raised

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
    """What modules share: the device, and the package's weights, read where the file is mapped."""

    def __init__(self, threads: int, weights: Path, parameters: Mapping[str, tuple[int, int]]) -> None:
        """threads: 0 is the usable cores. Raises ProviderError where IREE cannot use the processor."""
        try:
            device = _opened(num_threads(threads))
        except _FAILURES as error:
            raise ProviderError(f"IREE finds no device here ({_reason(error)}): use --provider cpu.") from error
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
        return self._allocator.allocate_buffer_copy(_MEMORY, _USAGE, self._held.objects[2], array, element_type)

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
        self._held.held[0] = views  # else their memory is another pass's at once
        return [view.map().asarray(view.shape, np.dtype(np.float32)) for view in views]


def _opened(threads: int) -> Any:
    if threads == 1:
        return rt.get_driver("local-sync").create_default_device()
    rt.flags.parse_flags(f"--task_topology_group_count={threads}")  # of devices that are made from here on
    return rt.get_driver("local-task").create_default_device()


def _reason(error: Exception) -> str:
    """What IREE says behind the place in its source and the kind of failure, but for where it was then."""
    message = str(error) or type(error).__name__
    _, _, reason = message.partition("; ")
    first = (reason or message).partition("; while ")[0].splitlines()[0]
    return "".join(char for char in first if char.isprintable())[:_MAX_REASON]
