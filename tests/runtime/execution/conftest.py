"""Native kernels of each instruction set that this processor has."""

import ctypes
import shutil
from collections.abc import Iterator

import pytest

from reader_edge_runtime.execution.onnxruntime import native
from reader_edge_runtime.execution.onnxruntime.native import instructions_here, native_library


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of kernels runs with the best set and the plainest that are here, or with every one if that is wanted."""
    if "instructions" in metafunc.fixturenames:
        here = instructions_here()
        is_whole = metafunc.config.getoption("--every-combination")
        sets = here if is_whole else dict.fromkeys([*here[:1], *here[-1:]])
        metafunc.parametrize("instructions", sets or ["none"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def instructions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The instruction set whose kernels are used, one after another."""
    library = tmp_path_factory.mktemp("kernels") / native._LIBRARY.name
    shutil.copyfile(native._LIBRARY, library)  # a library chooses once: each set has its own
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("READER_EDGE_INSTRUCTIONS", request.param)
        ctypes.CDLL(str(library))
        patch.setattr(native, "_LIBRARY", library)
        native_library.cache_clear()
        yield request.param
    native_library.cache_clear()
