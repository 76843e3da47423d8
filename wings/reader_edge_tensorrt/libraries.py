"""Which TensorRT this machine has, and what keeps it from running.

There are two, each a provider of ONNX Runtime's: TensorRT for RTX comes as a plugin with all its libraries, for cards
of the RTX kind; TensorRT itself is loaded by the wheel, in one major version, and PyPI's newest is the next one. With
both, keys and values lie in memory of the CUDA provider, which also moves them.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from reader_edge_runtime.execution.onnxruntime.device.cuda import cuda_obstacle, has_cuda
from reader_edge_runtime.execution.onnxruntime.wheel import INSTALLED_WHEEL, ort

_MAJOR = 10  # of what the wheel onnxruntime-gpu 1.31 loads
_LEAST_VERSION = (10, 15)  # the first that updates a cache in place
_LIBRARIES = (f"libnvinfer.so.{_MAJOR}", f"libnvonnxparser.so.{_MAJOR}")
_LIBRARY_PACKAGE = "tensorrt_libs"  # where Python packages of TensorRT have theirs
_DISTRIBUTIONS = ("tensorrt-cu13-libs", "tensorrt-cu12-libs", "tensorrt")
_REMEDY = "pip install 'tensorrt-cu13-libs>=10.15,<11'"

_PLUGIN = "onnxruntime-ep-nv-tensorrt-rtx"
_PLUGIN_MODULE = _PLUGIN.replace("-", "_")


@dataclass(frozen=True, slots=True)
class TensorRt:
    """One of the two. provider: as ONNX Runtime calls it. devices: of the plugin's; none where the wheel loads it."""

    provider: str
    version: str
    devices: Sequence[Any] = ()


def tensorrt_obstacle() -> str | None:
    """Why TensorRT cannot run here, as one sentence with the remedy; None where nothing is known to be missing."""
    obstacle = cuda_obstacle()
    if obstacle is not None:
        return obstacle
    return _plugin_obstacle() if _has_plugin() else _library_obstacle()


def has_tensorrt() -> bool:
    """Whether somebody installed a TensorRT beside a wheel that can use it."""
    return has_cuda() and (_has_plugin() or any(map(_version, _DISTRIBUTIONS)))


def installed_tensorrt() -> TensorRt:
    """The one that runs packages here, where there is no obstacle: the plugin before the wheel's own."""
    if _has_plugin():
        name, version, devices = _plugin_devices()
        return TensorRt(name, f"{_PLUGIN} {version}", devices[:1])
    return TensorRt("TensorrtExecutionProvider", f"TensorRT {_dotted(_library_version())}")


def _has_plugin() -> bool:
    return find_spec(_PLUGIN_MODULE) is not None


def _plugin_obstacle() -> str | None:
    remedy = f"pip uninstall {_PLUGIN}, then {_REMEDY}, or use --provider cuda"
    try:
        *_, devices = _plugin_devices()
    except Exception as error:  # onnxruntime raises unrelated classes here
        return f"{_PLUGIN} cannot be loaded ({str(error).splitlines()[0]:.200}): {remedy}."
    return None if devices else f"{_PLUGIN} finds no GPU of its kind, which is RTX of Ampere or later: {remedy}."


@cache
def _plugin_devices() -> tuple[str, str, list[Any]]:
    """The plugin's provider, registered once a process, its version and its devices."""
    plugin = import_module(_PLUGIN_MODULE)
    name = str(plugin.get_ep_name())
    ort.register_execution_provider_library(name, plugin.get_library_path())
    return name, str(plugin.__version__), [device for device in ort.get_ep_devices() if device.ep_name == name]


def _library_obstacle() -> str | None:
    missing = next((name for name in _LIBRARIES if _load(name) is None), None)
    if missing is not None:
        found = next((f", and {name} {version} is here" for name in _DISTRIBUTIONS if (version := _version(name))), "")
        return (
            f"{INSTALLED_WHEEL} loads TensorRT {_MAJOR}{found}, but {missing} is missing: {_REMEDY}, or "
            f"pip install {_PLUGIN} for an RTX card."
        )
    if _library_version() < _LEAST_VERSION:
        return f"TensorRT {_dotted(_library_version())} updates no cache in place: {_REMEDY}."
    return None


def _library_version() -> tuple[int, ...]:
    library = _load(_LIBRARIES[0])
    number = 0 if library is None else int(library.getInferLibVersion())  # 101601 is 10.16.1
    return number // 10_000, number // 100 % 100, number % 100


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _load(name: str) -> ctypes.CDLL | None:
    """A library, from where the system has it or a Python package; it stays loaded, so that ONNX Runtime finds it."""
    spec = find_spec(_LIBRARY_PACKAGE)
    folders = [] if spec is None else [Path(each) for each in spec.submodule_search_locations or ()]
    for path in (name, *(str(folder / name) for folder in folders)):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
