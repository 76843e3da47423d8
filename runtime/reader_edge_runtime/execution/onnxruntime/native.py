"""The optional native kernels: the package reader-edge-native, a library of operators for ONNX Runtime.

A package's graph defines these operators by plain ones, so nothing needs the library. Bits are the same but in packages
of precision "keep", where each of the two has its own, the same at every width.
"""

import functools
from importlib import import_module, util
from pathlib import Path

from reader_edge_runtime.errors import InstallationError

OPERATORS_PROPERTY = "reader_edge.operators"  # of the model: the operators it has definitions of

_PACKAGE = "reader_edge_native"


@functools.cache
def native_library() -> Path | None:
    """The library to register, None where it is not installed or has no kernels for this processor.

    Raises InstallationError where it is installed and cannot be loaded, or where READER_EDGE_INSTRUCTIONS names an
    instruction set that is not here.
    """
    if util.find_spec(_PACKAGE) is None:
        return None
    try:
        path: Path | None = import_module(_PACKAGE).library_path()
    except OSError as error:
        raise InstallationError(
            f"reader-edge-native cannot be loaded ({error}): build it again, or run with --no-native."
        ) from error
    except ValueError as error:
        raise InstallationError(str(error)) from error
    return path


def native_instructions() -> str | None:
    """The instruction set whose kernels native_library() uses, such as "avx512-vnni"; None where there is none."""
    if native_library() is None:
        return None
    ask = getattr(import_module(_PACKAGE), "instructions", None)
    return "unknown" if ask is None else str(ask())  # reader-edge-native 0.1.0 has one set, and does not say which
