"""What CUDA needs here, and which part of it is missing.

Looked up without ONNX Runtime where possible: its own message names no remedy, and then it runs on the CPU.
"""

import ctypes
import platform
from pathlib import Path

from reader_edge_runtime.execution.onnxruntime.session import CUDA
from reader_edge_runtime.execution.onnxruntime.wheel import INSTALLED_WHEEL, ort

# What the wheel onnxruntime-gpu 1.31 was built with (its library's own needs, and the kernels inside it).
_CUDA_MAJOR = 13
_LIBRARIES = ("libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10", "libcudnn.so.9")
_ARCHITECTURES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))

_CONTAINERS = (Path("/.dockerenv"), Path("/run/.containerenv"))  # a file that docker, and podman, leave there

_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


def cuda_obstacle() -> str | None:
    """Why CUDA cannot work here, as one sentence with the remedy; None where nothing is known to be missing."""
    if not has_cuda():
        return f"The installed wheel, {INSTALLED_WHEEL}, has no CUDA: {_how_to_install()}."
    if platform.system() != "Linux":
        return f"CUDA is supported on Linux, not on {platform.system()}: use --provider cpu."
    built_for = str(getattr(ort, "cuda_version", None) or _CUDA_MAJOR)
    if built_for.partition(".")[0] != str(_CUDA_MAJOR):
        return (
            f"{INSTALLED_WHEEL} was built for CUDA {built_for}, reader-edge is made for CUDA {_CUDA_MAJOR}: "
            "pip install --upgrade 'reader-edge[gpu]'."
        )
    driver = _load("libcuda.so.1")
    if driver is None and any(mark.exists() for mark in _CONTAINERS):
        return (
            "This container has no NVIDIA driver (libcuda.so.1): start it with its GPUs (docker run --gpus all), or "
            "use --provider cpu."
        )
    if driver is None:
        return "There is no NVIDIA driver here (libcuda.so.1): install one, or use --provider cpu."
    return _driver_obstacle(driver) or _library_obstacle()


def has_cuda() -> bool:
    """Whether the installed wheel is one for CUDA."""
    return CUDA in ort.get_available_providers()


def _how_to_install() -> str:
    if platform.system() == "Linux" and platform.machine() == "aarch64":
        return (
            "PyPI has no such wheel for aarch64, so install the one that NVIDIA publishes for this machine, or use "
            "--provider cpu"
        )
    return "pip uninstall onnxruntime, then pip install 'reader-edge[gpu]'"


def _driver_obstacle(driver: ctypes.CDLL) -> str | None:
    status = driver.cuInit(0)
    num_devices = _queried(driver.cuDeviceGetCount) if status == 0 else 0
    if num_devices == 0:
        return f"The NVIDIA driver finds no GPU (status {status}): make one visible, or use --provider cpu."
    version = _queried(driver.cuDriverGetVersion)
    if version < 1000 * _CUDA_MAJOR:
        return (
            f"The NVIDIA driver supports CUDA {version // 1000}.{version % 1000 // 10}, {INSTALLED_WHEEL} needs "
            f"CUDA {_CUDA_MAJOR}: install a newer driver."
        )
    major, minor = (_queried(driver.cuDeviceGetAttribute, which, 0) for which in _CAPABILITY)
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
    return f"{name.value.decode(errors='replace')}, driver for CUDA {_queried(driver.cuDriverGetVersion)}"


def is_built_for(architecture: tuple[int, int]) -> bool:
    """Whether the wheel has kernels for a GPU: those of its own major version, and no newer minor one."""
    return any(major == architecture[0] and minor <= architecture[1] for major, minor in _ARCHITECTURES)


def _library_obstacle() -> str | None:
    ort.preload_dlls()  # finds the libraries that came as Python packages
    for name in _LIBRARIES:
        if _load(name) is None:
            return f"The CUDA library {name} is missing{_other_major(name)}: pip install 'reader-edge[gpu]' brings it."
    return None


def _other_major(name: str) -> str:
    """What is here in its place."""
    stem, _, major = name.rpartition(".")
    others = [f"{stem}.{each}" for each in (12, 11) if major == str(_CUDA_MAJOR)]
    here = next((other for other in others if _load(other) is not None), None)
    return "" if here is None else f" ({here} is here, which this wheel cannot use)"


def _load(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _queried(function: "ctypes._NamedFuncPointer", *arguments: int) -> int:
    """What a driver function writes to its first argument; 0 where it fails."""
    answer = ctypes.c_int(0)
    return answer.value if function(ctypes.byref(answer), *arguments) == 0 else 0
