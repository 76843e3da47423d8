"""The native library: missing or damaged, its instruction sets, its memory, and what fails on its threads."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.blocks.blocks import unpack_blocks
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.block_linear import gguf_linear, store_blocks
from reader_edge_export.operators.hadamard_linear import BlockMatrix, hadamard_block_linear
from reader_edge_export.quantize.hadamard import hadamard
from reader_edge_runtime.errors import InstallationError
from reader_edge_runtime.execution.onnxruntime import native
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.onnxruntime.native import instructions_here, native_instructions, native_library
from reader_edge_runtime.measuring.cost_cache import cost_path
from reader_edge_runtime.package.model_package import ModelPackage
from tests.conftest import ROOT
from tests.gguf_files import random_rows
from tests.runtime.execution.native_operator import Build, needs_kernels, operator_model

on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere than on Linux memory is not limited so, nor given back"
)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where it is looked for; nothing is there."""
    path = tmp_path / "reader_edge_native.so"
    monkeypatch.setattr(native, "_LIBRARY", path)
    native.native_library.cache_clear()
    yield path
    native.native_library.cache_clear()


def test_nothing_needs_the_library(library: Path) -> None:
    assert native.native_library() is None
    assert native.native_instructions() is None
    assert native.instructions_here() == []


def test_a_damaged_library_is_one_sentence(library: Path) -> None:
    library.write_bytes(b"no library")
    with pytest.raises(
        InstallationError, match=r"cannot be loaded \(.*\): install reader-edge again, or .*--no-native"
    ):
        native.native_library()


@needs_kernels
def test_a_set_is_used_where_it_is_wanted(instructions: str) -> None:
    assert native_instructions() == instructions


@needs_kernels
def test_pass_times_of_each_set_are_kept_apart(instructions: str, demo_folder: Path) -> None:
    target = HostTarget.open(ModelPackage.open(demo_folder), 1)
    path = cost_path(target, 1, 1)
    assert target.instructions == instructions
    target.instructions = "another"
    assert cost_path(target, 1, 1) != path


@needs_kernels
@pytest.mark.parametrize(
    ("wanted", "shown"),
    [("sse9", "sse9"), ("AVX2", "AVX2"), ("avx3", "avx3"), ("a" * 99, "a" * 99), ("\udcff\n", r"\\xff\\n")],
)
def test_another_set_is_refused(
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


@needs_kernels
def test_without_leave_of_the_system_for_tiles_the_next_set_is_used() -> None:
    here = instructions_here()
    if here[0] != "amx":
        pytest.skip("this processor has no amx")
    environment = {name: value for name, value in os.environ.items() if name != "READER_EDGE_INSTRUCTIONS"}
    done = subprocess.run([sys.executable, "-c", _WITHOUT_TILES], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == here[1], done.stderr


VISIBLE = 1 << 19


# Attention of more rows than memory has room for the scores of, then of a few.
RUN = f"""
import resource
import numpy as np
from tests.runtime.execution.native.node_session import Input, node_session

def inputs(visible):
    keys = np.ones((1, 2, visible, 8), np.float32)
    query, mask = np.ones((1, 2, 33, 8), np.float32), np.zeros((1, 1, 33, visible), np.float32)
    return {{"input_0": query, "input_1": keys, "input_2": keys, "input_3": mask}}

session = node_session("ExactAttention", [Input(each, False) for each in inputs(4).values()], [1], {{"scale": 1.0}})
session.run(None, inputs(4))
large = inputs({VISIBLE})
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (16 << 20), resource.RLIM_INFINITY))
try:
    session.run(None, large)
except Exception as error:
    print(type(error).__name__, str(error).count("bad_alloc"))
print(session.run(None, inputs(4))[0].mean())
"""


@pytest.mark.long
@needs_kernels
@on_linux
def test_memory_at_its_end_on_a_thread_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["Fail 1", "1.0"]


NUM_INPUTS, NUM_OUTPUTS = 8192, 16384
WEIGHT_BYTES = NUM_INPUTS * NUM_OUTPUTS // 2


# Prints memory that is taken by a session, at its peak, and by the file of its weights.
OPENING = r"""
import re, sys
from pathlib import Path
from reader_edge.terminal.memory import peak_bytes, resident_bytes
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import open_session
before = resident_bytes()
session = open_session(Path(sys.argv[1]), 1, native_library())
in_file = re.compile(r"[.]data\n(?:(?![0-9a-f]+-).*\n)*?Rss: +([0-9]+)")
of_file = in_file.findall(Path("/proc/self/smaps").read_text())
print(resident_bytes() - before, peak_bytes() - before, sum(map(int, of_file)) * 1024)
"""


@needs_kernels
@on_linux
def test_packed_weights_are_held_once(tmp_path: Path) -> None:
    held, peak, of_file = (num_bytes / WEIGHT_BYTES for num_bytes in _opened(_product, tmp_path))
    assert 0.9 < held < 1.4  # with scales, a sixteenth
    assert peak < 1.6
    assert of_file < 0.01


@needs_kernels
@on_linux
def test_scales_of_a_files_blocks_are_held_once_too(tmp_path: Path) -> None:
    rows = random_rows(gguf.GGMLQuantizationType.Q4_K, (64, NUM_INPUTS), np.random.default_rng(0))
    blocks = unpack_blocks(BLOCK_TYPES["Q4_K"], np.tile(rows, (64, 1)))

    def product(editor: GraphEditor, values: Sequence[ir.Value]) -> list[ir.Value]:
        return [gguf_linear(editor, values[0], store_blocks(editor, blocks, "weight"))]

    num_bytes = sum(array.nbytes for array in blocks.arrays.values())
    held, _, of_file = _opened(product, tmp_path)
    assert held > 0.9 * num_bytes
    assert of_file < 0.01 * num_bytes


def _opened(build: Build, folder: Path) -> list[int]:
    """What OPENING prints of a model of this operator."""
    model = operator_model({"rows": ("B", "N", NUM_INPUTS)}, build)
    model.functions.clear()
    ir.save(model, folder / "model.onnx", external_data="model.onnx.data")
    command = [sys.executable, "-c", OPENING, str(folder / "model.onnx")]
    printed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    return [int(number) for number in printed.split()]


def _product(editor: GraphEditor, values: Sequence[ir.Value]) -> list[ir.Value]:
    num_blocks = NUM_INPUTS // 32
    packed = np.full((NUM_OUTPUTS, num_blocks, 16), 0x5A, np.uint8)
    scales = np.full((NUM_OUTPUTS, num_blocks), 3, np.int8)
    ones = np.ones(NUM_OUTPUTS, np.float32), np.ones(NUM_INPUTS, np.float32)
    constants: list[npt.NDArray[Any]] = [packed, scales, *ones, hadamard(64)]
    matrix = BlockMatrix(*(editor.constant(array, "constant") for array in constants))
    return [hadamard_block_linear(editor, values[0], matrix, None)]
