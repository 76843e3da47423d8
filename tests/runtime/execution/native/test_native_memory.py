"""Weights that native kernels pack are in memory once: the file that they come from is given back meanwhile."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.blocks.unpack_blocks import unpack_blocks
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.block_linear import gguf_linear, store_blocks
from reader_edge_export.operators.spread_linear import BlockMatrix, spread_block_linear
from reader_edge_export.quantize.hadamard import hadamard
from tests.gguf_files import random_rows
from tests.runtime.execution.native_operator import Build, needs_kernels, operator_model

pytestmark = [
    needs_kernels,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere than on Linux nothing is given back"),
]

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


def test_packed_weights_are_held_once(tmp_path: Path) -> None:
    held, peak, of_file = (num_bytes / WEIGHT_BYTES for num_bytes in _opened(_product, tmp_path))
    assert 0.9 < held < 1.4  # with scales, a sixteenth
    assert peak < 1.6
    assert of_file < 0.01


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
    return [spread_block_linear(editor, values[0], matrix, None)]
