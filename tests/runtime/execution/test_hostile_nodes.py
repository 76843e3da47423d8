"""Native kernels of nodes that no export writes: an error or an answer, whatever their inputs and attributes are."""

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from reader_edge_export.operators import OPERATOR_DOMAIN
from reader_edge_runtime.execution.onnxruntime.native import native_library
from tests.runtime.execution.native_operator import needs_kernels

pytestmark = needs_kernels

FLOAT, HALF, INT8, UINT8 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.UINT8
# Types of the inputs, of the outputs, and attributes.
OPERATORS: dict[str, tuple[list[int], list[int], dict[str, Any]]] = {
    "SwiGLU": ([FLOAT], [FLOAT], {}),
    "RotaryHeads": ([FLOAT] * 3, [FLOAT] * 3, {"q_num_heads": 2, "kv_num_heads": 1}),
    "SpreadRows": ([FLOAT] * 3, [FLOAT], {}),
    "CacheRows": ([FLOAT] * 4, [INT8] * 2, {}),
    "RowLinear": ([FLOAT, INT8, FLOAT], [FLOAT], {}),
    "RowLinearBias": ([FLOAT, INT8, FLOAT, FLOAT], [FLOAT], {}),
    "SpreadRowLinear": ([FLOAT, FLOAT, FLOAT, INT8, FLOAT], [FLOAT], {}),
    "SpreadRowLinear16": ([FLOAT, FLOAT, FLOAT, INT8, FLOAT], [FLOAT], {}),
    "SpreadBlockLinear": ([FLOAT, FLOAT, FLOAT, UINT8, INT8, FLOAT], [FLOAT], {}),
    "ExactAttention": ([FLOAT] * 4, [FLOAT], {"scale": 1.0}),
    "IntegerAttention": ([FLOAT] * 4, [FLOAT], {"scale": 1.0}),
    "ExactAttention16": ([FLOAT, HALF, HALF, FLOAT], [FLOAT], {"scale": 1.0}),
    "IntegerAttention16": ([FLOAT, HALF, HALF, FLOAT], [FLOAT], {"scale": 1.0}),
    "Int8CacheAttention": ([FLOAT, FLOAT, FLOAT, INT8, INT8, FLOAT], [FLOAT], {"scale": 1.0}),
}
WRONG_ATTRIBUTES: list[Any] = [0, -1, 3, 2**40, 2**62, 1.5, float("nan"), "x", [1, 2]]
REFUSALS = (
    ort_errors.Fail,
    ort_errors.InvalidArgument,
    ort_errors.InvalidGraph,
    ort_errors.NotImplemented,
    ort_errors.RuntimeException,
)

Arrays = dict[str, npt.NDArray[Any]]


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_node_that_no_export_writes_is_refused_or_computed(operator: str) -> None:
    draw = random.Random(operator)
    num_refused = 0
    for _ in range(50):
        try:
            _run(operator, draw)
        except REFUSALS:
            num_refused += 1
    assert num_refused > 10


def _run(operator: str, draw: random.Random) -> None:
    input_types, output_types, attributes = OPERATORS[operator]
    names, constants, fed = _inputs(input_types, draw)
    wrong = {name: draw.choice([value, draw.choice(WRONG_ATTRIBUTES)]) for name, value in attributes.items()}
    kept = {name: value for name, value in wrong.items() if draw.random() > 0.1}
    outputs = [f"output_{i}" for i in range(len(output_types))]
    graph = helper.make_graph(
        [helper.make_node(operator, names, outputs, domain=OPERATOR_DOMAIN, **kept)],
        "hostile",
        [_value(name, helper.np_dtype_to_tensor_dtype(each.dtype), [None] * each.ndim) for name, each in fed.items()],
        [_value(name, kind, None) for name, kind in zip(outputs, output_types, strict=True)],
        [numpy_helper.from_array(each, name) for name, each in constants.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(OPERATOR_DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    options.register_custom_ops_library(str(native_library()))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session.run(None, fed)


def _inputs(types: list[int], draw: random.Random) -> tuple[list[str], Arrays, Arrays]:
    """Names of inputs, "" for one that is missing; constants and what is fed, of whatever sizes."""
    names: list[str] = []
    constants: Arrays = {}
    fed: Arrays = {}
    common = draw.choice([1, 16, 32, 64])  # sizes that agree now and then
    for i, kind in enumerate(types):
        names.append(f"input_{i}" if draw.random() > 0.05 else "")
        sizes = [draw.choice([common, common, 0, 1, 2, 3, 33, 96]) for _ in range(draw.choice([0, 1, 2, 2, 3, 4, 4]))]
        array = np.ones(sizes, helper.tensor_dtype_to_np_dtype(kind))
        if names[-1]:
            (constants if i and draw.random() < 0.6 else fed)[names[-1]] = array
    return names, constants, fed


def _value(name: str, kind: int, sizes: list[None] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, sizes)
