"""The optional wheels of IREE: the runtime, which passes need, and the compiler, which new modules need."""

import sys
from functools import cache
from importlib import metadata, util
from pathlib import Path

_RUNTIME, _COMPILER = "iree-base-runtime", "iree-base-compiler"


def iree_obstacle() -> str | None:
    """Why IREE cannot run modules here, as one sentence with the remedy."""
    if runtime_version() is None:
        return "IREE's runtime is missing: pip install 'reader-edge[iree]'."
    return None


def compiler_obstacle() -> str | None:
    """Why packages cannot be made for IREE here, likewise: what is compiled is run, too."""
    if compiler_command() is None or runtime_version() is None:
        return "IREE's compiler or runtime is missing: pip install 'reader-edge[iree-export]'."
    return None


def runtime_version() -> str | None:
    """None where it is not installed."""
    return _version(_RUNTIME)


def compiler_version() -> str | None:
    """None where it is not installed."""
    return _version(_COMPILER)


def compiler_command() -> list[str] | None:
    """How the compiler is called; it runs in a process of its own. None where it is not installed."""
    if compiler_version() is None:
        return None
    found = util.find_spec("iree.compiler")
    name = "iree-compile.exe" if sys.platform == "win32" else "iree-compile"
    folders = [] if found is None else [Path(place) / "_mlir_libs" for place in found.submodule_search_locations or ()]
    return next(([str(folder / name)] for folder in folders if (folder / name).is_file()), None)


@cache
def _version(wheel: str) -> str | None:
    try:
        return metadata.version(wheel)
    except metadata.PackageNotFoundError:
        return None
