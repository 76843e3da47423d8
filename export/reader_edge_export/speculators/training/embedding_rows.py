"""The rows of a target's embedding, found by the part of its graph that they come of, however they are stored."""

import numpy as np
import onnx_ir as ir

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.execution.onnxruntime.session import open_session
from reader_edge_runtime.package.manifest import GRAPH_NAME
from reader_edge_runtime.package.model_package import ModelPackage

_IDS_A_RUN = 4096
_IDS = "input_ids"


def embedding_rows(package: ModelPackage) -> Float32Array:
    """Rows (V, E) as the first layer reads them. Raises ExportError where a package's graph has no such part."""
    model = ir.load(package.path(GRAPH_NAME))
    value = _embedding(model.graph)
    if value is None:
        raise ExportError(
            f"The graph of '{package.folder}' embeds more than token ids: no speculator is trained for it."
        )
    (ids,) = (each for each in model.graph.inputs if each.name == _IDS)
    graph = ir.convenience.extract(model.graph, [ids], [value])
    functions = [function.clone() for function in model.functions.values()]
    part = ir.to_proto(ir.Model(graph, ir_version=model.ir_version, functions=functions)).SerializeToString()
    session = open_session(part, 0, weights_folder=package.folder)
    vocab_size = package.manifest.vocab_size
    runs = np.split(np.arange(vocab_size), range(_IDS_A_RUN, vocab_size, _IDS_A_RUN))
    return np.concatenate([session.run(None, {_IDS: run[None]})[0][0] for run in runs])


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
