"""A package as deep and as wide as a large model, from the export of one of its layers, for measurements of speed.

All layers share one layer's weights in memory. A pass reads them once a layer where a layer is larger than the
device's cache; what it says means nothing.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from reader_edge_runtime.package.manifest import GRAPH_NAME, WEIGHTS_NAME, file_entry
from reader_edge_runtime.package.manifest_file import write_manifest
from reader_edge_runtime.package.model_package import ModelPackage

NORMS = ("RMSNormalization", "Pow")  # with what a norm begins; its input is the sum of the layers below


def repeat_layer(package: ModelPackage, out: Path, num_layers: int, vocab_size: int) -> ModelPackage:
    """Write a package of one layer to `out`, with `num_layers` of it and `vocab_size` rows of its vocabulary."""
    model = ir.load(package.path(GRAPH_NAME))
    _repeat(model.graph, num_layers)
    _widen(model.graph, package.manifest.vocab_size, vocab_size)
    out.mkdir(parents=True)
    ir.save(model, out / GRAPH_NAME, external_data=WEIGHTS_NAME)
    for name in package.manifest.files:
        if name not in (GRAPH_NAME, WEIGHTS_NAME):
            shutil.copy(package.path(name), out / name)
    files = {path.name: file_entry(path) for path in sorted(out.iterdir())}
    write_manifest(out, replace(package.manifest, num_layers=num_layers, vocab_size=vocab_size, files=files))
    return ModelPackage.open(out)


def streamed_bytes(package: ModelPackage) -> int:
    """Bytes of weights that a pass multiplies by, those that several layers share once for each."""
    num_bytes = 0
    for node in ir.load(package.path(GRAPH_NAME)).graph:
        weight = node.inputs[1] if node.op_type == "MatMul" else None
        maker = weight.producer() if weight is not None else None
        stored = maker.inputs[0] if maker is not None else weight
        if stored is not None and stored.const_value is not None:
            num_bytes += stored.const_value.nbytes
    return num_bytes


def _repeat(graph: ir.Graph, num_layers: int) -> None:
    norms = [node for node in graph if node.op_type in NORMS]
    values = {value.name: value for value in (*graph.inputs, *graph.outputs)}
    source, result, last = norms[0].inputs[0], norms[-1].inputs[0], norms[-1]
    assert source is not None
    assert result is not None
    layer = _nodes_between([source, values["past_key.0"], values["past_value.0"]], last)
    ends = list(result.uses())  # the last norm's
    above = result
    for index in range(1, num_layers):
        copies = {source: above}
        for kind in ("key", "value"):
            past = values[f"past_{kind}.0"]
            copies[past] = ir.Value(name=f"past_{kind}.{index}", shape=past.shape, type=past.type)
            graph.inputs.append(copies[past])
        for node in layer:
            graph.insert_before(last, _copied(node, copies))
        for kind in ("key", "value"):
            present = copies[values[f"present_{kind}.0"]]
            present.name = f"present_{kind}.{index}"
            graph.outputs.append(present)
        above = copies[result]
    for node, position in ends:
        node.replace_input_with(position, above)


def _nodes_between(sources: list[ir.Value], last: ir.Node) -> list[ir.Node]:
    """The nodes that the sources reach, as far as `last`."""
    reached, nodes = set(sources), []
    graph = last.graph
    assert graph is not None
    for node in graph:
        if node is last:
            break
        if not reached.isdisjoint(node.inputs):
            reached.update(node.outputs)
            nodes.append(node)
    return nodes


def _copied(node: ir.Node, copies: dict[ir.Value, ir.Value]) -> ir.Node:
    inputs = [copies.get(value, value) if value is not None else None for value in node.inputs]
    copy = ir.Node(node.domain, node.op_type, inputs, node.attributes.values(), num_outputs=len(node.outputs))
    for old, new in zip(node.outputs, copy.outputs, strict=True):
        new.shape, new.type = old.shape, old.type
        copies[old] = new
    return copy


def _widen(graph: ir.Graph, old_size: int, vocab_size: int) -> None:
    for value in graph.initializers.values():
        array = value.const_value
        if array is not None and array.shape and array.shape[0] == old_size:
            stored = array.numpy()
            rows = np.resize(stored, (vocab_size, *stored.shape[1:]))
            value.const_value = ir.Tensor(rows, name=value.name)
            value.shape = value.const_value.shape
    for node in graph:
        if node.attributes.get_int("N") == old_size:  # outputs of a product of four bits
            node.attributes["N"] = ir.AttrInt64("N", vocab_size)
        for output in node.outputs:
            if output.shape is not None and old_size in output.shape:
                output.shape = ir.Shape([vocab_size if size == old_size else size for size in output.shape])
