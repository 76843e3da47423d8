"""How many products a second the native kernels do, beside the most that their instructions can do here.

    python -m benchmarks.layers.products [--types int8,Q4_1] [--rows 1,4,8,16] [--library OTHER.so] [--rounds 60]

Rows times a matrix of 1,536 inputs and 576 outputs, which a core's own cache holds, their rounding to bytes in it; one
thread, GMAC/s, medians of interleaved rounds. READER_EDGE_INSTRUCTIONS names the instruction set. --library: another
build of the kernels, whose figures follow ours. The most that instructions can do comes from instruction_mix.cpp, which
this compiles.
"""

import argparse
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.blocks.linear import gguf_linear, store_blocks
from reader_edge_export.blocks.unpack_blocks import unpack_blocks
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.definitions import Int8Matrix, spread_row_linear
from reader_edge_export.quantize.hadamard import block_size, hadamard
from reader_edge_runtime.execution.onnxruntime.native import native_instructions, native_library
from reader_edge_runtime.execution.onnxruntime.session import cpu_options
from tests.gguf_files import random_rows
from tests.runtime.execution.native_operator import operator_model

NUM_INPUTS, NUM_OUTPUTS = 1536, 576
MIX = Path(__file__).with_name("instruction_mix.cpp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", type=lambda text: text.split(","), default=["int8", *BLOCK_TYPES])
    parser.add_argument("--rows", type=lambda text: [int(each) for each in text.split(",")], default=[1, 4, 8, 16, 32])
    parser.add_argument("--library", type=Path)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    ours = native_library()
    if ours is None:
        parser.error("there are no native kernels here: python native/build_library.py")

    print(f"{native_instructions()}; GMAC/s of one thread. The most that instructions can do:")
    print(*instruction_mixes(), sep="\n")
    libraries = [ours] if options.library is None else [ours, options.library]
    print("\n| rows |", " | ".join(map(str, options.rows)), "|\n" + "|---" * (1 + len(options.rows)) + "|")
    for name in options.types:
        sessions = [product_session(name, library) for library in libraries]
        cells = [", ".join(f"{each:.1f}" for each in rates(sessions, count, options.rounds)) for count in options.rows]
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


def instruction_mixes() -> list[str]:
    """A name and GMAC/s each."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "mix"
        subprocess.run(["c++", "-O3", "-o", program, MIX], check=True)
        return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


def product_session(name: str, library: Path) -> ort.InferenceSession:
    """Rows times a random matrix: "int8", or a block type of GGUF files."""
    rng = np.random.default_rng(0)

    def build(editor: GraphEditor, values: Sequence[ir.Value]) -> list[ir.Value]:
        if name == "int8":
            weight = rng.integers(-127, 128, (NUM_OUTPUTS, NUM_INPUTS)).astype(np.int8)
            smoothing, rotation = np.ones(NUM_INPUTS, np.float32), hadamard(block_size(NUM_INPUTS)).astype(np.float32)
            arrays = weight, rng.random(NUM_OUTPUTS, np.float32), smoothing, rotation
            matrix = Int8Matrix(*(editor.constant(array, "matrix") for array in arrays))
            return [spread_row_linear(editor, values[0], matrix, None, 1)]
        rows = random_rows(gguf.GGMLQuantizationType[name], (NUM_OUTPUTS, NUM_INPUTS), rng)
        return [gguf_linear(editor, values[0], store_blocks(editor, unpack_blocks(BLOCK_TYPES[name], rows), "matrix"))]

    model = operator_model({"rows": ("B", "N", NUM_INPUTS)}, build)
    model.functions.clear()
    options = cpu_options(1)
    options.register_custom_ops_library(str(library))
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])


def rates(sessions: Sequence[ort.InferenceSession], num_rows: int, num_rounds: int) -> list[float]:
    """GMAC/s of each session."""
    rows = np.random.default_rng(1).standard_normal((1, num_rows, NUM_INPUTS), np.float32)
    seconds: list[list[float]] = [[] for _ in sessions]
    for _ in range(num_rounds):
        for session, times in zip(sessions, seconds, strict=True):
            begin = time.perf_counter()
            session.run(None, {"rows": rows})
            times.append(time.perf_counter() - begin)
    products = num_rows * NUM_INPUTS * NUM_OUTPUTS
    return [products / float(np.median(times[num_rounds // 10 :])) * 1e-9 for times in seconds]


if __name__ == "__main__":
    main()
