"""Finds the embedding and the logit head in a target's graph by how they are used, however they are stored."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from reader_edge_export.quantize.vocabulary import HIDDEN_STATES
from reader_edge_runtime.arrays import Array, Float32Array
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.execution.onnxruntime.session import open_session
from reader_edge_runtime.package.manifest import GRAPH_NAME
from reader_edge_runtime.package.model_package import ModelPackage

_IDS_A_RUN, _STATES_A_RUN = 4096, 64
_IDS, _LOGITS = "input_ids", "logits"
_AFTER_PRODUCT = ("Mul", "Div", "Tanh")


def embedding_rows(package: ModelPackage) -> Float32Array:
    """Rows (V, E) as the first layer reads them. Raises ExportError where a package's graph has no such part."""
    model = ir.load(package.path(GRAPH_NAME))
    value = _embedding(model.graph)
    if value is None:
        raise ExportError(
            f"The graph of '{package.folder}' embeds more than token ids: no speculator is trained for it."
        )
    vocab_size = package.manifest.vocab_size
    runs = np.split(np.arange(vocab_size), range(_IDS_A_RUN, vocab_size, _IDS_A_RUN))
    return np.concatenate(_run(package, model, _IDS, value, runs))


def logit_head_rows(package: ModelPackage) -> Float32Array:
    """Rows (V, E) of the logit head's matrix."""
    model = ir.load(package.path(GRAPH_NAME))
    (logits,) = (value for value in model.graph.outputs if value.name == _LOGITS)
    size = package.manifest.hidden_size
    assert size is not None
    product, units = _product(logits), np.eye(size, dtype=np.float32)
    runs = [part for unit in np.split(units, range(_STATES_A_RUN, size, _STATES_A_RUN)) for part in (unit, -unit)]
    outputs = _run(package, model, HIDDEN_STATES, product, runs)
    columns = [(up - down) / 2 for up, down in zip(outputs[::2], outputs[1::2], strict=True)]  # without a bias
    return np.ascontiguousarray(np.concatenate(columns).T)


def _product(value: ir.Value) -> ir.Value:
    """A logit head's output before it is scaled and capped."""
    while (node := value.producer()) is not None and node.op_type in _AFTER_PRODUCT:
        (value,) = (each for each in node.inputs if each is not None and each.const_value is None)
    return value


def _run(
    package: ModelPackage, model: ir.Model, name: str, output: ir.Value, runs: Sequence[Array]
) -> list[Float32Array]:
    """What the part of a graph between the value of this name and an output gives for each run, of one sequence."""
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    (given,) = (value for value in values if value.name == name)
    graph = ir.convenience.extract(model.graph, [given], [output])
    functions = [function.clone() for function in model.functions.values()]
    part = ir.to_proto(ir.Model(graph, ir_version=model.ir_version, functions=functions)).SerializeToString()
    session = open_session(part, 0, weights_folder=package.folder)
    return [session.run(None, {name: run[None]})[0][0] for run in runs]


def _embedding(graph: ir.Graph) -> ir.Value | None:
    """The first value of ids alone that is read beside other inputs: what the first layer adds to."""
    of_ids = {value for value in graph.inputs if value.name == _IDS}
    others = {value for value in graph.inputs if value.name != _IDS}
    for node in graph:
        if any(value in others for value in node.inputs):
            others.update(node.outputs)
        elif any(value in of_ids for value in node.inputs):
            of_ids.update(node.outputs)
    for node in graph:
        for value in node.outputs:
            if value in of_ids and any(set(reader.inputs) & others for reader, _ in value.uses()):
                return value
    return None
