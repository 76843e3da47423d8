"""Native kernels for reader-edge's operators, as a library that ONNX Runtime loads."""

import ctypes
from pathlib import Path

__all__ = ["library_path"]


def library_path() -> Path | None:
    """The library to register with a session; None where this processor lacks the instructions it is made of."""
    path = Path(__file__).with_name("reader_edge_native.so")
    return path if ctypes.CDLL(str(path)).reader_edge_is_supported() else None
