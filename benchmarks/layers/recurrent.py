"""What a layer with a recurrent state costs beside the products of a pass, and beside ONNX Runtime's own operators.

    python -m benchmarks.layers.recurrent [--threads 1] [--nodes 1,2,4,8,16] [--rounds 200]

A layer of Qwen 3.5 0.8B: 16 heads with states of 128 x 128, a convolution of 6144 channels. A step's pass: one pending
row is replayed, the root is kept, the other nodes are a tree; the state is renewed where it lies. ONNX Runtime's
operators know no trees: they get as many tokens in a chain, and their state goes to other memory. A second table has
passes of four nodes by the rows that a commit left to replay. Medians of interleaved rounds.
"""

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper

from reader_edge_runtime.execution.onnxruntime.native import native_instructions, native_library
from reader_edge_runtime.execution.onnxruntime.session import cpu_options
from tests.recurrent_trees import Conv, DeltaSizes, Feed, Trees, build_delta, conv_feed, delta_feed, delta_inputs
from tests.runtime.execution.native_operator import Build, operator_model

SIZES = DeltaSizes(16, 16, 128, 128)
NUM_CHANNELS, NUM_TAPS, NUM_LAYERS = 6144, 4, 18
NUM_SLOTS, NUM_NODES = 4, 4
Run = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--nodes", type=lambda text: [int(each) for each in text.split(",")], default=[1, 2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()

    conv = Conv.random(NUM_CHANNELS, NUM_TAPS)
    delta_session = _tree_session(delta_inputs(SIZES), build_delta, options.threads)
    conv_session = _tree_session(conv.inputs(), conv.build, options.threads)
    peers = _linear_attention(options.threads), _causal_conv(options.threads)
    print(f"{native_instructions()}, {options.threads} threads; ms of a layer, and of {NUM_LAYERS}")
    print("| nodes | TreeDelta | TreeConv | all layers | LinearAttention | CausalConvWithState |")
    print("|---" * 6 + "|")
    for num_nodes in options.nodes:
        rng = np.random.default_rng(num_nodes)
        trees = _tree(rng, num_nodes)
        runs = [
            _bound(delta_session, delta_feed(rng, SIZES, trees, NUM_SLOTS)),
            _bound(conv_session, conv_feed(rng, conv, trees, NUM_SLOTS)),
            *_peer_runs(*peers, rng, num_nodes),
        ]
        delta_ms, conv_ms, *others = _medians(runs, options.rounds)
        times = delta_ms, conv_ms, NUM_LAYERS * (delta_ms + conv_ms), *others
        print("|", num_nodes, "|", " | ".join(f"{each:.3f}" for each in times), "|", flush=True)

    print("\n| rows to replay | TreeDelta | TreeConv | all layers |\n" + "|---" * 4 + "|")
    runs = []
    for num_pending in range(NUM_SLOTS + 1):
        rng = np.random.default_rng(num_pending)
        trees = _tree(rng, NUM_NODES, num_pending)
        runs.append(_bound(delta_session, delta_feed(rng, SIZES, trees, NUM_SLOTS)))
        runs.append(_bound(conv_session, conv_feed(rng, conv, trees, NUM_SLOTS)))
    medians = _medians(runs, options.rounds)
    for num_pending, (delta_ms, conv_ms) in enumerate(zip(medians[::2], medians[1::2], strict=True)):
        print(f"| {num_pending} | {delta_ms:.3f} | {conv_ms:.3f} | {NUM_LAYERS * (delta_ms + conv_ms):.2f} |")


def _tree(rng: np.random.Generator, num_nodes: int, num_pending: int = 1) -> Trees:
    parents = [-1, *(int(rng.integers(max(0, node - 3), node)) for node in range(1, num_nodes))]
    return Trees(np.array([parents]), np.array([1]), np.array([num_pending]), np.array([num_nodes]))


def _tree_session(inputs: dict[str, Sequence[int | str]], build: Build, num_threads: int) -> ort.InferenceSession:
    library = native_library()
    model = operator_model(inputs, build)
    options = cpu_options(num_threads)
    if library is not None:
        model.functions.clear()
        options.register_custom_ops_library(str(library))
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])


def _bound(session: ort.InferenceSession, feed: Feed) -> Run:
    """A pass whose state stays where it is."""
    binding = session.io_binding()
    state = ort.OrtValue.ortvalue_from_numpy(feed.pop("state"))
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    binding.bind_ortvalue_input("state", state)
    for place, output in enumerate(session.get_outputs()):
        if place == 1:
            binding.bind_ortvalue_output(output.name, state)
        else:
            binding.bind_output(output.name)
    return lambda: session.run_with_iobinding(binding)


def _linear_attention(num_threads: int) -> ort.InferenceSession:
    num_heads = SIZES.num_heads
    node = helper.make_node(
        "LinearAttention",
        list("qkvsgb"),
        ["output", "present"],
        domain="com.microsoft",
        q_num_heads=num_heads,
        kv_num_heads=num_heads,
        scale=1.0,
        update_rule="gated_delta",
    )
    return _peer_session(node, dict(zip("qkvsgb", (3, 3, 3, 4, 3, 3), strict=True)), num_threads)


def _causal_conv(num_threads: int) -> ort.InferenceSession:
    inputs, outputs = ["x", "w", "", "p"], ["output", "present"]
    node = helper.make_node("CausalConvWithState", inputs, outputs, domain="com.microsoft", activation="none")
    return _peer_session(node, dict.fromkeys("xwp", 3), num_threads)


def _peer_session(node: onnx.NodeProto, ranks: dict[str, int], num_threads: int) -> ort.InferenceSession:
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank) for name, rank in ranks.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output]
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "peer", inputs, outputs), opset_imports=opsets, ir_version=11)
    options = cpu_options(num_threads)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _peer_runs(
    attention: ort.InferenceSession, conv: ort.InferenceSession, rng: np.random.Generator, num_tokens: int
) -> list[Run]:
    def normal(*sizes: int) -> npt.NDArray[np.float32]:
        return rng.standard_normal(sizes, np.float32)

    width, heads = SIZES.num_heads * SIZES.value_size, SIZES.num_heads
    rows = {name: normal(1, num_tokens, width) / np.float32(SIZES.key_size) for name in "qkv"}
    gates = {"g": -np.abs(normal(1, num_tokens, heads)), "b": rng.random((1, num_tokens, heads), np.float32)}
    attention_feed = {**rows, **gates, "s": normal(1, *SIZES.state)}
    conv_inputs = {"x": normal(1, NUM_CHANNELS, num_tokens), "w": normal(NUM_CHANNELS, 1, NUM_TAPS)}
    conv_inputs["p"] = normal(1, NUM_CHANNELS, NUM_TAPS - 1)
    return [lambda: attention.run(None, attention_feed), lambda: conv.run(None, conv_inputs)]


def _medians(runs: Sequence[Run], num_rounds: int) -> list[float]:
    """Milliseconds of each, after a tenth of the rounds."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(num_rounds):
        for run, times in zip(runs, seconds, strict=True):
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
    return [float(np.median(times[num_rounds // 10 :])) * 1e3 for times in seconds]


if __name__ == "__main__":
    main()
