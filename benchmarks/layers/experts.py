"""How a mixture of experts grows with the nodes of a pass: other nodes ask for other experts, whose bytes are read too.

    python -m benchmarks.layers.experts [--experts 128] [--top 8] [--hidden 2048] [--inner 768] [--form int8]
        [--threads 2]

One layer's experts, of random weights, in a form that packages store; sizes at first those of Qwen3-30B-A3B, of which a
layer takes 600 MB in int8. Each node asks for its own experts, as likely for one as for another: real routing repeats
itself and reads less. Medians of interleaved rounds; the last column is how often the bytes of one node are read.
"""

import argparse
import time
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.definitions import swiglu
from reader_edge_runtime.execution.onnxruntime.native import native_instructions, native_library
from reader_edge_runtime.execution.onnxruntime.session import cpu_options
from tests.expert_matrices import FORMS, random_experts
from tests.runtime.execution.native_operator import operator_model

NUM_NODES = (1, 2, 4, 8, 16)
NUM_DRAWS = 4  # of experts, for each number of nodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--top", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--inner", type=int, default=768)
    parser.add_argument("--form", choices=FORMS[1:], default="int8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()

    session = _session(options)
    rng = np.random.default_rng(0)
    feeds = {num_nodes: [_feed(rng, options, num_nodes) for _ in range(NUM_DRAWS)] for num_nodes in NUM_NODES}
    seconds: dict[int, list[float]] = {num_nodes: [] for num_nodes in NUM_NODES}
    for _ in range(options.rounds):
        for num_nodes, draws in feeds.items():
            for feed in draws:
                begin = time.perf_counter()
                session.run(None, feed)
                seconds[num_nodes].append(time.perf_counter() - begin)
    print(f"{options.form}, {native_instructions()}, {options.threads} threads")
    print("| nodes | ms | as often as one node | experts read, likewise |\n|---|---|---|---|")
    alone = float(np.median(seconds[1]))
    for num_nodes, times in seconds.items():
        took = float(np.median(times))
        read = np.mean([len(np.unique(feed["indices"])) for feed in feeds[num_nodes]]) / options.top
        print(f"| {num_nodes} | {took * 1e3:.3f} | {took / alone:.2f} | {read:.2f} |")


def _session(options: argparse.Namespace) -> ort.InferenceSession:
    up = random_experts(options.form, options.experts, 2 * options.inner, options.hidden)
    down = random_experts(options.form, options.experts, options.hidden, options.inner)

    def build(editor: GraphEditor, inputs: Sequence[ir.Value]) -> list[ir.Value]:
        rows, indices, weights = inputs  # as `replace_experts` and `LayerExperts.mix` have it
        tiled = editor.op("Tile", [editor.op("Unsqueeze", [rows, editor.int64s(1)]), editor.int64s(1, options.top, 1)])
        flat = editor.op("Reshape", [tiled, editor.int64s(-1, options.hidden)])
        experts = editor.op("Reshape", [indices, editor.int64s(-1)], dtype=ir.DataType.INT64)
        outputs = down.product(editor, swiglu(editor, up.product(editor, flat, experts)), experts)
        by_rank = editor.op("Reshape", [outputs, editor.int64s(-1, options.top, options.hidden)])
        weighted = editor.op("Mul", [by_rank, editor.op("Unsqueeze", [weights, editor.int64s(-1)])])
        sums = editor.op("CumSum", [weighted, editor.constant(np.array(1), "axis")])
        return [editor.op("Gather", [sums, editor.constant(np.array(-1), "last")], {"axis": 1})]

    sizes = {"rows": ("T", options.hidden), "indices": ("T", options.top), "weights": ("T", options.top)}
    model = operator_model(sizes, build)
    session_options = cpu_options(options.threads)
    library = native_library()
    if library is not None:
        model.functions.clear()
        session_options.register_custom_ops_library(str(library))
    proto = ir.to_proto(model).SerializeToString()
    return ort.InferenceSession(proto, session_options, providers=["CPUExecutionProvider"])


def _feed(rng: np.random.Generator, options: argparse.Namespace, num_nodes: int) -> dict[str, np.ndarray]:
    indices = np.stack([rng.permutation(options.experts)[: options.top] for _ in range(num_nodes)])
    rows = rng.standard_normal((num_nodes, options.hidden), np.float32)
    return {"rows": rows, "indices": indices, "weights": rng.random(indices.shape, np.float32)}


if __name__ == "__main__":
    main()
