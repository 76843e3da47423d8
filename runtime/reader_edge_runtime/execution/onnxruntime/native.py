"""The optional native kernels: a library of operators for ONNX Runtime, built from native/ into this folder.

A package's graph defines these operators by plain ones, so nothing needs the library: it is not there without a C++
compiler, or for another processor. Bits are the same but in packages of precision "keep", where each of the two has its
own, the same at every width.

The library has kernels for several instruction sets and takes the best that the processor has, or the one that the
environment variable READER_EDGE_INSTRUCTIONS names.
"""

import ctypes
import functools
import hashlib
import sys
from pathlib import Path

from reader_edge_runtime.errors import InstallationError

OPERATORS_PROPERTY = "reader_edge.operators"  # of the model: the operators it has definitions of

_LIBRARY = Path(__file__).with_name("reader_edge_native" + (".dll" if sys.platform == "win32" else ".so"))


@functools.cache
def native_library() -> Path | None:
    """The library to register with a session; None where it was not built, or has no kernels for this processor.

    Raises InstallationError where it is here and cannot be loaded, or where READER_EDGE_INSTRUCTIONS names an
    instruction set that is not here.
    """
    if not _LIBRARY.is_file():
        return None
    refusal = _reported("reader_edge_refusal")
    if refusal is not None:
        raise InstallationError(refusal)
    return _LIBRARY if _reported("reader_edge_instructions") else None


def native_instructions() -> str | None:
    """The instruction set whose kernels native_library() uses, such as "avx512-vnni"; None where there is none."""
    return None if native_library() is None else _reported("reader_edge_instructions")


def instructions_here() -> list[str]:
    """The instruction sets that the library has kernels for and this processor has, the best first."""
    names = _reported("reader_edge_instructions_here") if _LIBRARY.is_file() else None
    return names.split(",") if names else []


@functools.cache
def library_digest() -> str:
    """SHA-256 of the library: other kernels have other times, and may have other bits. Empty where it is not here."""
    return hashlib.sha256(_LIBRARY.read_bytes()).hexdigest() if _LIBRARY.is_file() else ""


def _reported(function: str) -> str | None:
    """What a function of the library says."""
    try:
        ask = getattr(ctypes.CDLL(str(_LIBRARY)), function)
    except (OSError, AttributeError) as error:
        raise InstallationError(
            f"The native kernels cannot be loaded ({error}): install reader-edge again, or run with --no-native."
        ) from error
    ask.restype = ctypes.c_char_p
    answer: bytes | None = ask()
    return None if answer is None else answer.decode(errors="backslashreplace").replace("\n", "\\n")
