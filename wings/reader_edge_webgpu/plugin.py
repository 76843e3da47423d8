"""Loads ONNX Runtime's WebGPU plugin, and says what it lacks on this machine."""

import functools
import platform
from importlib import import_module, metadata, util
from typing import Any

from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.wheel import ort

WEBGPU = "WebGpuExecutionProvider"

_MODULE, _WHEEL = "onnxruntime_ep_webgpu", "onnxruntime-ep-webgpu"
_NAME = "webgpu"  # that the library is registered by


def webgpu_obstacle() -> str | None:
    """Why WebGPU cannot be had here, as one sentence with the remedy; None where a device is here."""
    if not has_plugin():
        return f"{_WHEEL} is not installed: pip install 'reader-edge[webgpu]', or use --provider cpu."
    try:
        is_here = bool(devices())
    except ProviderError as error:
        return str(error)
    return None if is_here else f"WebGPU finds no GPU here: {_missing_driver()}, or use --provider cpu."


def has_plugin() -> bool:
    """Whether the plugin is installed."""
    return util.find_spec(_MODULE) is not None


def plugin_version() -> str:
    """Name and version of the installed plugin."""
    return f"{_WHEEL} {metadata.version(_WHEEL)}"


@functools.cache
def devices() -> list[Any]:
    """ONNX Runtime's devices (OrtEpDevice) that the plugin serves. Raises ProviderError where it cannot be loaded."""
    library = import_module(_MODULE).get_library_path()
    try:
        ort.register_execution_provider_library(_NAME, library)
    except Exception as error:  # onnxruntime raises unrelated classes here
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ProviderError(
            f"ONNX Runtime cannot load {plugin_version()} ({reason}): pip install --upgrade 'reader-edge[webgpu]', or "
            "use --provider cpu."
        ) from error
    return [each for each in ort.get_ep_devices() if each.ep_name == WEBGPU]


def _missing_driver() -> str:
    if platform.system() == "Linux":
        return "install Vulkan and the GPU's driver for it (on Debian libvulkan1 and mesa-vulkan-drivers)"
    return "install the GPU's driver"
