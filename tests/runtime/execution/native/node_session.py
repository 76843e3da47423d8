"""A session of one node of ours, whatever its inputs and attributes. It imports no torch, which takes seconds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from reader_edge_export.operators.definitions import OPERATOR_DOMAIN
from reader_edge_runtime.execution.onnxruntime.native import native_library


class Input(NamedTuple):
    """What a node is given."""

    array: npt.NDArray[Any]
    is_constant: bool


def node_session(
    operator: str, inputs: Sequence[Input | None], output_types: Sequence[int], attributes: dict[str, Any]
) -> ort.InferenceSession:
    """Of a graph of one node: inputs input_0 and so on, those that are constant in it."""
    given = {f"input_{i}": each for i, each in enumerate(inputs) if each is not None}
    names = [f"input_{i}" if each is not None else "" for i, each in enumerate(inputs)]
    constants = {name: array for name, (array, is_constant) in given.items() if is_constant}
    fed = {name: array for name, (array, is_constant) in given.items() if not is_constant}
    outputs = [f"output_{i}" for i in range(len(output_types))]
    graph = helper.make_graph(
        [helper.make_node(operator, names, outputs, domain=OPERATOR_DOMAIN, **attributes)],
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
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _value(name: str, kind: int, sizes: list[None] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, sizes)
