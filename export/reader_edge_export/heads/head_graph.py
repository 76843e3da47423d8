"""The graph of all heads, as the runtime ships it: which products are made, with no matrix of any head in it."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from reader_edge_runtime.drafting.sources.head_file import NUM_FIRST, NUM_GUESSES, NUM_SECOND
from reader_edge_runtime.execution.onnxruntime.head_graph import VOCABULARY_AGAIN, VOCABULARY_WEIGHT

_OPSET, _IR_VERSION = 18, 9


def head_graph() -> bytes:
    """A model that lacks the matrices of `HeadSizes`, named as there; `head_file` tells its inputs and outputs."""
    graph = _Graph()
    scaled = graph.op("Mul", graph.op("Sub", "hidden_states", "mean"), "gain")
    token = graph.cast(graph.op("Gather", "embedding", "pending"))
    inner = graph.silu(graph.layer(graph.op("Concat", scaled, token, axis=-1), "first"))
    first = graph.layer(inner, "first_out")
    graph.top(first, VOCABULARY_WEIGHT, NUM_FIRST, "probabilities", "numbers")
    guesses = graph.op("Slice", "numbers", *(graph.constant(n) for n in (0, NUM_GUESSES, 1)))
    known = graph.op("Unsqueeze", graph.layer(inner, "second_known"), graph.constant(1))
    token = graph.cast(graph.op("Gather", "embedding", guesses))
    guessed = graph.multiply(token, "second_guessed.weight", "second_guessed.scales")
    second = graph.layer(graph.silu(graph.op("Add", known, guessed)), "second_out")
    graph.top(second, VOCABULARY_AGAIN, NUM_SECOND, "next_probabilities", "next_numbers")
    return graph.model()


class _Graph:
    """A graph as it grows; values are named by numbers."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def constant(self, value: int) -> str:
        """An int64 (1,)."""
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.array([value]), name))
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

    def multiply(self, value: str, weight: str, scales: str) -> str:
        """The product with a layer's weight. No weight is of two layers: ONNX Runtime cannot load that where it has to
        turn signed weights into unsigned ones, on x86 with AVX2 and without VNNI."""
        names = [f"v{len(self._nodes)}{part}" for part in ("q", "s", "z")]
        self.op("DynamicQuantizeLinear", value, outputs=names)
        sums = self.cast(self.op("MatMulInteger", names[0], weight, names[2]))
        return self.op("Mul", sums, self.op("Mul", names[1], scales))

    def layer(self, value: str, name: str) -> str:
        return self.op("Add", self.multiply(value, f"{name}.weight", f"{name}.scales"), f"{name}.bias")

    def top(self, value: str, weight: str, count: int, *outputs: str) -> None:
        """The likeliest tokens after what goes into the vocabulary, whose matrix goes by the name `weight`."""
        said = self.op("Add", self.multiply(value, weight, "vocabulary.scales"), "vocabulary.bias")
        likely = self.op("Softmax", said)
        self.op("TopK", likely, self.constant(count), outputs=outputs)

    def model(self) -> bytes:
        """All of it, as a file holds it."""
        inputs = [
            helper.make_tensor_value_info("hidden_states", TensorProto.FLOAT, ["B", "E"]),
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
        return bytes(model.SerializeToString())
