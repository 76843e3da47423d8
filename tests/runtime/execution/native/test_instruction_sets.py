"""Which native kernels are used: the best that the processor has, or those that are asked for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reader_edge_runtime.errors import InstallationError
from reader_edge_runtime.execution.onnxruntime import native
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.onnxruntime.native import instructions_here, native_instructions, native_library
from reader_edge_runtime.measuring.cost_cache import cost_path
from reader_edge_runtime.package.model_package import ModelPackage
from tests.runtime.execution.native_operator import needs_kernels

pytestmark = needs_kernels


def test_a_set_is_used_where_it_is_asked_for(instructions: str) -> None:
    assert native_instructions() == instructions


def test_pass_times_of_each_set_are_kept_apart(instructions: str, demo_folder: Path) -> None:
    target = HostTarget.open(ModelPackage.open(demo_folder), 1)
    path = cost_path(target, 1, 1)
    assert target.instructions == instructions
    target.instructions = "another"
    assert cost_path(target, 1, 1) != path


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [("sse9", "sse9"), ("AVX2", "AVX2"), ("avx3", "avx3"), ("a" * 99, "a" * 99), ("\udcff\n", r"\\xff\\n")],
)
def test_what_is_not_here_is_refused_in_one_sentence(
    wanted: str, shown: str, instructions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = instructions_here()
    assert instructions in here
    assert wanted not in here
    monkeypatch.setenv("READER_EDGE_INSTRUCTIONS", wanted)
    monkeypatch.setattr(native, "_LIBRARY", Path(shutil.copy(native._LIBRARY, tmp_path)))
    native_library.cache_clear()
    try:
        with pytest.raises(InstallationError, match=f"INSTRUCTIONS is '{shown}', which .*{here[0]}") as caught:
            native_library()
    finally:
        monkeypatch.undo()
        native_library.cache_clear()
    assert str(caught.value).count(". ") == 0


# Linux gives no tiles to a process whose signals have a stack without room for them.
_WITHOUT_TILES = """
import ctypes
class Stack(ctypes.Structure):
    _fields_ = [("place", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(8192)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(ctypes.addressof(memory), 0, len(memory))), None) == 0
from reader_edge_runtime.execution.onnxruntime.native import native_instructions
print(native_instructions())
"""


def test_without_leave_of_the_system_for_tiles_the_next_set_is_used() -> None:
    here = instructions_here()
    if here[0] != "amx":
        pytest.skip("this processor has no amx")
    environment = {name: value for name, value in os.environ.items() if name != "READER_EDGE_INSTRUCTIONS"}
    done = subprocess.run([sys.executable, "-c", _WITHOUT_TILES], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == here[1], done.stderr
