"""What TensorRT needs beside the wheel, where somebody installed some of it.

The wheel loads one major version of its libraries, and PyPI's newest is the next one.
"""

import ctypes
from importlib import metadata

from reader_edge_runtime.execution.onnxruntime.wheel import INSTALLED_WHEEL, ort

_PROVIDER = "TensorrtExecutionProvider"
_MAJOR = 10  # of what the wheel onnxruntime-gpu 1.31 loads
_DISTRIBUTIONS = ("tensorrt-cu13-libs", "tensorrt-cu12-libs", "tensorrt")
_REMEDY = "pip install 'tensorrt-cu13-libs>=10.15,<11'"


def tensorrt_obstacle() -> str | None:
    """Why an installed TensorRT cannot be loaded by the wheel, as one sentence with the remedy.

    None where nobody asked for it: without TensorRT here, or with a wheel that has no part for it.
    """
    if _PROVIDER not in ort.get_available_providers():
        return None
    versions = [version for name in _DISTRIBUTIONS if (version := _version(name))]
    if not versions or any(version.startswith(f"{_MAJOR}.") for version in versions):
        return None
    if _loads(f"libnvinfer.so.{_MAJOR}"):
        return None
    return f"{INSTALLED_WHEEL} loads TensorRT {_MAJOR} (libnvinfer.so.{_MAJOR}), and {versions[0]} is here: {_REMEDY}."


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
