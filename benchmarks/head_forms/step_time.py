"""What a step of a form takes: exported, its products in eight bits, behind a pass of a package."""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import onnx
import onnxruntime as ort
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic

from benchmarks.head_forms.form import Form
from reader_edge_export.quiet import quiet_libraries
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.session import CPU, cpu_options
from reader_edge_runtime.target import Pass, Target

NEW_PLACES = 2  # of a text since its last step: tokens a pass, rounded
_PAST, _NODES = 128, 4
Key = TypeVar("Key")

_NAMES = ("states", "pending", "keys", "values")


def open_step(form: Form) -> Callable[[], object]:
    """A step of a form behind _PAST places, by dynamically quantised products of one thread, as runtime heads have."""
    states, pending = torch.zeros(1, NEW_PLACES, form.sizes.hidden), torch.zeros(1, NEW_PLACES, dtype=torch.int64)
    with torch.no_grad():
        past = torch.zeros(1, _PAST, form.sizes.hidden), torch.zeros(1, _PAST, dtype=torch.int64)
        inputs = states, pending, *form.remember(*past)
    with tempfile.TemporaryDirectory() as folder, quiet_libraries():
        exact, rounded = Path(folder) / "exact.onnx", Path(folder) / "rounded.onnx"
        torch.onnx.export(form.eval(), inputs, exact, input_names=_NAMES, opset_version=18, dynamo=False)
        quantize_dynamic(
            _without_other_names(onnx.load(exact)),
            rounded,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
        session = ort.InferenceSession(rounded.read_bytes(), cpu_options(1), providers=[CPU])
    wanted = {each.name for each in session.get_inputs()}
    feeds = {name: value.numpy() for name, value in zip(_NAMES, inputs, strict=True) if name in wanted}
    return lambda: session.run(None, feeds)


def _without_other_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, where a matrix used twice has one name, or only its first product would be in eight bits."""
    first = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Identity"}
    kept = [node for node in model.graph.node if node.op_type != "Identity"]
    for node in kept:
        node.input[:] = [first.get(name, name) for name in node.input]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def step_seconds(target: Target, steps: Mapping[Key, Callable[[], object]], rounds: int) -> dict[Key, float]:
    """Processor time of each step's one thread, in turn, each behind a pass, so that its matrices come from memory."""
    cache = target.new_cache(1, _PAST + _NODES)
    cache.fill(0, _PAST)
    wanted = Pass(0, [DraftTree.chain([0] * _NODES)], [range(_NODES)])
    seconds: dict[Key, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            target.forward(cache, wanted)
            began = time.thread_time()
            step()
            seconds[name].append(time.thread_time() - began)
    return {name: statistics.median(each) for name, each in seconds.items()}
