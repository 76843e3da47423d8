"""Native kernels for reader-edge's operators, as a library that ONNX Runtime loads.

It has kernels for several instruction sets and takes the best that the processor has, or the one that the environment
variable READER_EDGE_INSTRUCTIONS names.
"""

import ctypes
import sys
from pathlib import Path

__all__ = ["has_library", "instructions", "instructions_here", "library_path"]

_LIBRARY = Path(__file__).with_name("reader_edge_native" + (".dll" if sys.platform == "win32" else ".so"))


def has_library() -> bool:
    """Whether the library is here: it is not without a C++ compiler, or for a processor that it has no kernels for."""
    return _LIBRARY.is_file()


def library_path() -> Path | None:
    """The library to register with a session; None without one, or where it has no kernels for this processor.

    Raises ValueError where READER_EDGE_INSTRUCTIONS names what is not here.
    """
    return _LIBRARY if instructions() is not None else None


def instructions() -> str | None:
    """The instruction set whose kernels are used, such as "avx512-vnni"; None where library_path() is."""
    if not has_library():
        return None
    name, refusal = _text("reader_edge_instructions"), _text("reader_edge_refusal")
    if refusal is not None:
        raise ValueError(refusal)
    return name


def instructions_here() -> list[str]:
    """The instruction sets that this library has kernels for and this processor has, the best first."""
    names = _text("reader_edge_instructions_here") if has_library() else None
    return names.split(",") if names else []


def _text(function: str) -> str | None:
    ask = getattr(ctypes.CDLL(str(_LIBRARY)), function)
    ask.restype = ctypes.c_char_p
    answer = ask()
    return None if answer is None else answer.decode(errors="backslashreplace").replace("\n", "\\n")
