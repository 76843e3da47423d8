"""Weights that native kernels pack are in memory once: the file that they come from is given back meanwhile."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from reader_edge_export.blocks.spread_linear import BlockMatrix, spread_block_linear
from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.quantize.spread import hadamard
from tests.runtime.execution.native_operator import needs_kernels, operator_model

pytestmark = [
    needs_kernels,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere than on Linux nothing is given back"),
]

NUM_INPUTS, NUM_OUTPUTS = 8192, 16384
WEIGHT_BYTES = NUM_INPUTS * NUM_OUTPUTS // 2

OPENING = """
import sys
from pathlib import Path
from reader_edge.terminal.memory import peak_bytes, resident_bytes
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import open_session
before = resident_bytes()
session = open_session(Path(sys.argv[1]), 1, native_library())
print(resident_bytes() - before, peak_bytes() - before)
"""


def test_packed_weights_are_held_once(tmp_path: Path) -> None:
    model = operator_model({"rows": ("B", "N", NUM_INPUTS)}, _product)
    model.functions.clear()
    ir.save(model, tmp_path / "model.onnx", external_data="model.onnx.data")
    assert (tmp_path / "model.onnx.data").stat().st_size > WEIGHT_BYTES
    command = [sys.executable, "-c", OPENING, str(tmp_path / "model.onnx")]
    printed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    held, peak = (int(number) / WEIGHT_BYTES for number in printed.split())
    assert 0.9 < held < 1.4  # with scales, a sixteenth
    assert peak < 1.6


def _product(editor: GraphEditor, values: Sequence[ir.Value]) -> list[ir.Value]:
    num_blocks = NUM_INPUTS // 32
    packed = np.full((NUM_OUTPUTS, num_blocks, 16), 0x5A, np.uint8)
    scales = np.full((NUM_OUTPUTS, num_blocks), 3, np.int8)
    ones = np.ones(NUM_OUTPUTS, np.float32), np.ones(NUM_INPUTS, np.float32)
    constants: list[npt.NDArray[Any]] = [packed, scales, *ones, hadamard(64)]
    matrix = BlockMatrix(*(editor.constant(array, "constant") for array in constants))
    return [spread_block_linear(editor, values[0], matrix, None)]
