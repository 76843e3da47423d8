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
    """The library to register, None where it is not installed or this processor is not one it is made for.

    Raises InstallationError where it is installed and cannot be loaded.
    """
    if util.find_spec(_PACKAGE) is None:
        return None
    try:
        path: Path | None = import_module(_PACKAGE).library_path()
    except OSError as error:
        raise InstallationError(
            f"reader-edge-native cannot be loaded ({error}): build it again, or run with --no-native."
        ) from error
    return path
