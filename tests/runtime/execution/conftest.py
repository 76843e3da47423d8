"""Native kernels of each instruction set that this processor has."""

import ctypes
import platform
import shutil
from collections.abc import Iterator
from importlib import import_module, util
from types import ModuleType

import pytest

from reader_edge_runtime.execution.onnxruntime.native import native_library

_IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
INSTRUCTION_SETS = ("amx", "avx512-vnni", "avx-vnni", "avx2") if _IS_X86 else ("neon-i8mm", "neon-dot", "neon")


@pytest.fixture(scope="module", params=INSTRUCTION_SETS)
def instructions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The instruction set whose kernels are used, one after another; skipped where it is not here."""
    native = _installed()
    if native is None or request.param not in getattr(native, "instructions_here", list)():
        pytest.skip(f"{request.param}: not of this processor, or reader-edge-native is not installed, or an old one")
    library = tmp_path_factory.mktemp("kernels") / native.library_path().name
    shutil.copyfile(native.library_path(), library)  # a library chooses once: each set has its own
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("READER_EDGE_INSTRUCTIONS", request.param)
        ctypes.CDLL(str(library))
        patch.setattr(native, "_LIBRARY", library)
        native_library.cache_clear()
        yield request.param
    native_library.cache_clear()


def _installed() -> ModuleType | None:
    return None if util.find_spec("reader_edge_native") is None else import_module("reader_edge_native")
