"""Native kernels for reader-edge's operators, as a library that ONNX Runtime loads."""

import ctypes
import sys
from pathlib import Path

__all__ = ["has_library", "library_path"]

_LIBRARY = Path(__file__).with_name("reader_edge_native" + (".dll" if sys.platform == "win32" else ".so"))


def has_library() -> bool:
    """Whether the library is here: it is not without a C++ compiler, or for another processor than x86-64."""
    return _LIBRARY.is_file()


def library_path() -> Path | None:
    """The library to register with a session; None without one, or where this processor lacks what it is made of."""
    return _LIBRARY if has_library() and ctypes.CDLL(str(_LIBRARY)).reader_edge_is_supported() else None
