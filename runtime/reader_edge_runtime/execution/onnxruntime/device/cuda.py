"""What CUDA needs here, and which part of it is missing.

Looked up without ONNX Runtime where possible: its own message names no remedy, and then it runs on the CPU.
"""

import ctypes
import platform

from reader_edge_runtime.execution.onnxruntime.session import CUDA
from reader_edge_runtime.execution.onnxruntime.wheel import INSTALLED_WHEEL, ort

# What the wheel onnxruntime-gpu 1.31 was built with (its library's own needs, and the kernels inside it).
_CUDA_MAJOR = 13
_LIBRARIES = ("libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10", "libcudnn.so.9")
_ARCHITECTURES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))

_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


def cuda_obstacle() -> str | None:
    """Why CUDA cannot work here, as one sentence with the remedy; None where nothing is known to be missing."""
    if CUDA not in ort.get_available_providers():
        return (
            f"The installed wheel, {INSTALLED_WHEEL}, has no CUDA: "
            "pip uninstall onnxruntime, then pip install 'reader-edge[gpu]'."
        )
    if platform.system() != "Linux":
        return f"CUDA is supported on Linux, not on {platform.system()}: use --provider cpu."
    driver = _load("libcuda.so.1")
    if driver is None:
        return "There is no NVIDIA driver here (libcuda.so.1): install one, or use --provider cpu."
    return _driver_obstacle(driver) or _library_obstacle()


def _driver_obstacle(driver: ctypes.CDLL) -> str | None:
    status = driver.cuInit(0)
    num_devices = _asked(driver.cuDeviceGetCount) if status == 0 else 0
    if num_devices == 0:
        return f"The NVIDIA driver finds no GPU (status {status}): make one visible, or use --provider cpu."
    version = _asked(driver.cuDriverGetVersion)
    if version < 1000 * _CUDA_MAJOR:
        return (
            f"The NVIDIA driver supports CUDA {version // 1000}.{version % 1000 // 10}, {INSTALLED_WHEEL} needs "
            f"CUDA {_CUDA_MAJOR}: install a newer driver."
        )
    major, minor = (_asked(driver.cuDeviceGetAttribute, which, 0) for which in _CAPABILITY)
    if is_built_for((major, minor)):
        return None
    built = ", ".join(f"{major}.{minor}" for major, minor in _ARCHITECTURES)
    return (
        f"The GPU has compute capability {major}.{minor}, {INSTALLED_WHEEL} is built for {built}: use --provider cpu."
    )


def gpu_name() -> str:
    """What the GPU calls itself, and the CUDA version of its driver; empty without a driver."""
    driver = _load("libcuda.so.1")
    if driver is None or driver.cuInit(0) != 0:
        return ""
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, len(name), 0)
    return f"{name.value.decode(errors='replace')}, driver for CUDA {_asked(driver.cuDriverGetVersion)}"


def is_built_for(architecture: tuple[int, int]) -> bool:
    """Whether the wheel has kernels for a GPU: those of its own major version, and no newer minor one."""
    return any(major == architecture[0] and minor <= architecture[1] for major, minor in _ARCHITECTURES)


def _library_obstacle() -> str | None:
    ort.preload_dlls()  # finds the libraries that came as Python packages
    for name in _LIBRARIES:
        if _load(name) is None:
            return f"The CUDA library {name} is missing: pip install 'reader-edge[gpu]' brings it."
    return None


def _load(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _asked(function: "ctypes._NamedFuncPointer", *arguments: int) -> int:
    """What a driver function writes to its first argument; 0 where it fails."""
    answer = ctypes.c_int(0)
    return answer.value if function(ctypes.byref(answer), *arguments) == 0 else 0
