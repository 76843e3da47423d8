"""A head as an ONNX graph: its matrices in eight bits, a scale for each column, as the runtime runs it."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from reader_edge_export.heads.head_module import HeadModule
from reader_edge_runtime.drafting.sources.head_file import NUM_FIRST, NUM_GUESSES, NUM_SECOND

Float32Array = npt.NDArray[np.float32]

_OPSET, _IR_VERSION = 18, 9


def head_graph(module: HeadModule) -> bytes:
    """The graph of a trained head; `head_file` tells its inputs and outputs."""
    weights = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    graph = _Graph()
    scaled = graph.op(
        "Mul", graph.op("Sub", "hidden_states", graph.constant(weights["mean"])), graph.constant(1 / weights["scale"])
    )
    embedding = graph.constant(weights["embedding"].astype(np.float16))
    token = graph.cast(graph.op("Gather", embedding, "pending"))
    inner = graph.silu(graph.linear(graph.op("Concat", scaled, token, axis=-1), weights, "first"))
    vocabulary = graph.matrix(weights["vocabulary.weight"]), graph.constant(weights["vocabulary.bias"])
    first = graph.op("Softmax", graph.multiply(graph.linear(inner, weights, "first_out"), *vocabulary))
    graph.top(first, NUM_FIRST, "probabilities", "numbers")
    guesses = graph.op("Slice", "numbers", *(graph.constant(np.array([n])) for n in (0, NUM_GUESSES, 1)))
    split = module.sizes.inner  # of the second layer's columns: what the first made, and the guess
    weight, bias = weights["second.weight"], graph.constant(weights["second.bias"])
    known = graph.op(
        "Unsqueeze", graph.multiply(inner, graph.matrix(weight[:, :split]), bias), graph.constant(np.array([1]))
    )
    guessed = graph.multiply(graph.cast(graph.op("Gather", embedding, guesses)), graph.matrix(weight[:, split:]))
    inner = graph.silu(graph.op("Add", known, guessed))
    second = graph.op("Softmax", graph.multiply(graph.linear(inner, weights, "second_out"), *vocabulary))
    graph.top(second, NUM_SECOND, "next_probabilities", "next_numbers")
    return graph.model(module.sizes.hidden)


class _Graph:
    """A graph as it grows; values are named by numbers."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def constant(self, value: npt.NDArray[np.generic]) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def op(self, kind: str, *inputs: str, outputs: Sequence[str] = (), **attributes: int) -> str:
        names = list(outputs) or [f"v{len(self._nodes)}"]
        node = helper.make_node(kind, inputs, names)
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        self._nodes.append(node)
        return names[0]

    def cast(self, value: str) -> str:
        return self.op("Cast", value, to=TensorProto.FLOAT)

    def silu(self, value: str) -> str:
        return self.op("Mul", value, self.op("Sigmoid", value))

    def matrix(self, weight: Float32Array) -> tuple[str, str]:
        """A weight (O, I) as int8 (I, O), and the scales (O,)."""
        scales = np.maximum(np.abs(weight).max(1), 1e-12) / 127
        return self.constant(np.rint(weight / scales[:, None]).astype(np.int8).T), self.constant(scales)

    def multiply(self, value: str, matrix: tuple[str, str], bias: str | None = None) -> str:
        names = [f"v{len(self._nodes)}{part}" for part in ("q", "s", "z")]
        self.op("DynamicQuantizeLinear", value, outputs=names)
        sums = self.cast(self.op("MatMulInteger", names[0], matrix[0], names[2]))
        product = self.op("Mul", sums, self.op("Mul", names[1], matrix[1]))
        return product if bias is None else self.op("Add", product, bias)

    def linear(self, value: str, weights: dict[str, Float32Array], name: str) -> str:
        return self.multiply(value, self.matrix(weights[f"{name}.weight"]), self.constant(weights[f"{name}.bias"]))

    def top(self, value: str, count: int, *outputs: str) -> None:
        self.op("TopK", value, self.constant(np.array([count])), outputs=outputs)

    def model(self, hidden_size: int) -> bytes:
        """The checked model, as a file holds it."""
        inputs = [
            helper.make_tensor_value_info("hidden_states", TensorProto.FLOAT, ["B", hidden_size]),
            helper.make_tensor_value_info("pending", TensorProto.INT64, ["B"]),
        ]
        shapes: dict[str, tuple[int, list[str | int | None]]] = {
            "probabilities": (TensorProto.FLOAT, ["B", NUM_FIRST]),
            "numbers": (TensorProto.INT64, ["B", NUM_FIRST]),
            "next_probabilities": (TensorProto.FLOAT, ["B", NUM_GUESSES, NUM_SECOND]),
            "next_numbers": (TensorProto.INT64, ["B", NUM_GUESSES, NUM_SECOND]),
        }
        outputs = [helper.make_tensor_value_info(name, kind, sizes) for name, (kind, sizes) in shapes.items()]
        graph = helper.make_graph(self._nodes, "head", inputs, outputs, self._constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
        onnx.checker.check_model(model, full_check=True)
        return bytes(model.SerializeToString())
