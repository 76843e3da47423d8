"""The graph of a speculator beside that of its target: traced, so that it follows the contract of
`reader_edge_runtime.package.package_parts`, and written into a package."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.onnx_graph.graph_editor import GraphEditor, constant_shape
from reader_edge_export.operators.block_linear import StoredBlocks
from reader_edge_export.operators.definitions import Int8Matrix
from reader_edge_export.operators.hadamard_linear import BlockMatrix
from reader_edge_export.options import ExportOptions
from reader_edge_export.package_graph import GraphKind, add_log_sum_exp, add_top_logits, write_graph
from reader_edge_export.progress import Progress
from reader_edge_export.quantize.hadamard import Hadamards, block_size
from reader_edge_export.quantize.vocabulary import (
    Stored,
    look_up_stored,
    round_tables,
    token_lookups,
    vocabulary_head,
)
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.speculators.speculator_module import TOP_K, SpeculatorModule
from reader_edge_export.trace.image_rows import DynamicAxes
from reader_edge_export.trace.tracing import Trace, current_trace, tree_attention
from reader_edge_export.trace.tree_config import TRACE_OPSET, marked_parts
from reader_edge_runtime.errors import UnsupportedArchitectureError
from reader_edge_runtime.package.manifest import GRAPH_NAME, KV_TYPES, FileEntry, kv_row_size
from reader_edge_runtime.package.package_parts import (
    SPECULATOR_GRAPH_NAME,
    SPECULATOR_WEIGHTS_NAME,
    SpeculatorPart,
)

_NAMES = "embedding", "vocabulary"  # of initializers in graphs of quantised weights; tied, the second alone

# Sizes of the traced example; all differ, so that a size fixed by mistake breaks the checks.
_B, _N1, _N2, _R, _PAST, _S = 2, 4, 3, 2, 5, 16
_MAX_CONTEXT = 1 << 62  # so that every window is one
_KINDS = "key", "value"
_PAIRS = "top_ids", "top_logits", "pair_logits"


def look_up_in_target(editor: GraphEditor, target: Path) -> None:
    """Have a speculator's embedding read the matrix of its target's graph, a file, if it would have another one.

    It would have the same where that is of fp32, or a table of int8 (`quantize.tables`), and it has the matrix anyway
    where its own logit head is tied to it.
    """
    lookup, (_, is_tied) = next(iter(token_lookups(editor.graph)), None), vocabulary_head(editor.graph)
    parts = _parts(ir.load(target).graph)
    if lookup is None or is_tied or not parts or set(parts) == {"int8", "scale"}:
        return
    weight = lookup.inputs[0]
    assert weight is not None
    look_up_stored(editor, _stored(editor, parts, constant_shape(weight)), lookup)
    del editor.graph.initializers[str(weight.name)]  # what is left is stored


def _parts(graph: ir.Graph) -> Mapping[str, ir.TensorProtocol]:
    """The tensors of a target's embedding, by the names of their forms; none in fp32."""
    found: dict[str, dict[str, ir.TensorProtocol]] = {name: {} for name in _NAMES}
    for name, value in graph.initializers.items():
        match = re.fullmatch(rf"({'|'.join(_NAMES)})\.(.+)\.\d+", name)
        if match is not None and value.const_value is not None:
            found[match[1]][match[2]] = value.const_value
    return next(filter(None, found.values()), {})


def _stored(editor: GraphEditor, parts: Mapping[str, ir.TensorProtocol], shape: tuple[int, ...]) -> Stored:
    """The matrix (V, E) of these tensors, which become initializers."""
    values: dict[str, ir.Value] = {}
    for part, tensor in parts.items():
        tensor.name = f"target.{tensor.name}"
        values[part] = editor.initializer(tensor)
    if "smoothing" not in values:
        kind = next(iter(values)).partition(".")[0]
        block_type = BLOCK_TYPES[kind.upper()]
        num_tokens, width = shape
        arrays = {part: values[f"{kind}.{part}"] for part in block_type.parts}
        return StoredBlocks(block_type, (num_tokens, width), arrays)
    rotation = values["smoothing"], Hadamards(editor).value(block_size(shape[1]))
    if "int4" in values:
        return BlockMatrix(values["int4"], values["block_scale"], values["scale"], *rotation)
    return Int8Matrix(values["int8"], values["scale"], *rotation)


def speculator_options(target: ExportOptions, borrows: bool = False) -> ExportOptions:
    """How a speculator is stored: in fp32 beside a target in fp32, else in int8. target: its options, not AUTO.

    borrows: whether its keys and values are the target's.
    """
    kv = next(name for name, kind in KV_TYPES.items() if kind == target.kv_dtype) if borrows else "fp32"
    return ExportOptions("fp32" if target.precision == "fp32" else "int8", kv=kv, check="none")


def part_of(format_name: str, module: SpeculatorModule, state_ids: tuple[int, ...]) -> SpeculatorPart:
    """What a package's manifest says of a speculator of this format."""
    config, (num_kv_heads, head_dim) = module.config, module.kv_sizes
    return SpeculatorPart(
        format=format_name,
        num_layers=module.num_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        hidden_size=module.state_size,
        draft_vocab_size=module.draft_vocab_size,
        top_k=module.top_k,
        state_ids=state_ids,
        block=module.block,
        lent=module.lent,
    )


def write_speculator(
    traced: Path,
    folder: Path,
    options: ExportOptions,
    calibration: Calibration,
    source: SourceModel,
    progress: Progress,
    is_beside_target: bool = True,
    lends_embedding: bool = False,
) -> dict[str, FileEntry]:
    """Write the graph at `traced` into a folder, and return what was written, by file name.

    is_beside_target: whether the folder has the target's, with which it shares what is alike. lends_embedding: whether
    the embedding is the target's, which is then looked up there as it is stored.
    """
    module = source.skeleton
    assert isinstance(module, SpeculatorModule)

    def report(editor: GraphEditor, _: ExportOptions) -> None:
        token_ids = module.add_logits(editor, source.weights, options.precision)
        if not module.has_pairs:  # which looked up what it names
            add_top_logits(editor, TOP_K, token_ids)
        add_log_sum_exp(editor)
        outputs = {value.name: value for value in editor.graph.outputs}
        if "next_states" in outputs:
            outputs["next_states"].shape = ir.Shape(["B", "N", module.state_size])
        for name in _PAIRS if module.has_pairs else ():  # sizes that a trace does not know
            outputs[name].shape = ir.Shape(["B", "R", *[module.top_k] * (1 + (name == "pair_logits"))])
        editor.graph.outputs.remove(outputs["logits"])
        if all(value.name != "write_pos" for value in editor.graph.inputs):  # where no layer attends
            unread = ir.Value(name="write_pos", shape=ir.Shape(["B"]), type=ir.TensorType(ir.DataType.INT64))
            editor.graph.inputs.append(unread)

    def borrow(editor: GraphEditor) -> None:
        if module.has_pairs and options.precision != "fp32":
            round_tables(editor, "codebook")
        if lends_embedding:
            look_up_in_target(editor, folder / GRAPH_NAME)

    kind = GraphKind(SPECULATOR_GRAPH_NAME, SPECULATOR_WEIGHTS_NAME, report, is_beside_target, borrow)
    return write_graph(traced, folder, options, calibration, source, None, progress, kind=kind)


def trace_speculator(source: SourceModel, target_size: int, graph: Path, kv_dtype: str = "float32") -> None:
    """Write a speculator, a `SpeculatorModule`, with its markers to `graph`.

    target_size: numbers of a node's states of the target, J * E_target. kv_dtype: of keys and values that are lent.
    """
    module = source.skeleton
    assert isinstance(module, SpeculatorModule)
    lent = _lent_rows(module, kv_dtype)
    inputs, outputs = _axes(module)
    inputs |= {name: {0: "B", 2: "S"} for name in lent}
    example = _example_inputs(module, target_size) | lent
    traced = _Traced(module, list(inputs), list(outputs))
    with torch.no_grad(), marked_parts(source):
        torch.onnx.export(
            traced,
            tuple(example[name] for name in inputs),
            graph,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes=inputs | outputs,
            opset_version=TRACE_OPSET,
            dynamo=False,  # the markers are TorchScript's
        )
    if any(index not in traced.layers for index in range(module.num_layers)):
        raise UnsupportedArchitectureError("The speculator's layers do not all attend to earlier tokens.")


def _axes(module: SpeculatorModule) -> tuple[DynamicAxes, DynamicAxes]:
    """Of inputs and outputs. Sizes are read off the first input, whose rows are all that a pass has."""
    mask, windows = {0: "B", 2: "N", 3: "M"}, [part.window for part in (module.block, module.lent) if part is not None]
    inputs: DynamicAxes = {
        "position_ids": {0: "B", 1: "N"},
        "input_ids": {0: "B", 1: "N" if module.block is None else "N2"},
        "tree_mask": mask,
        "write_pos": {0: "B"},
        "logit_rows": {0: "B", 1: "R"},
        "target_states": {0: "B", 1: "N1"},
    }
    outputs: DynamicAxes = {"logits": {0: "B", 1: "R"}}
    if module.block is None:
        inputs["own_states"], outputs["next_states"] = {0: "B", 1: "N2"}, {0: "B", 1: "N"}
    if any(windows):
        inputs["tree_mask_sliding"] = mask
    if module.has_pairs:
        outputs |= {name: {0: "B", 1: "R"} for name in _PAIRS}
    return inputs | _kv_axes("past", module.num_layers), outputs | _kv_axes("present", module.num_layers)


class _Traced(torch.nn.Module):
    """The graph contract around a speculator. layers: what they want, once it has run."""

    def __init__(self, module: SpeculatorModule, input_names: list[str], output_names: list[str]) -> None:
        super().__init__()
        self.module = module
        self._names = input_names, output_names
        self.layers: dict[int, Any] = {}

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        input_names, output_names = self._names
        trace = Trace(dict(zip(input_names, inputs, strict=True)), _MAX_CONTEXT)
        token = current_trace.set(trace)
        try:
            ids, positions, target_states = (
                trace.inputs[name] for name in ("input_ids", "position_ids", "target_states")
            )
            attend = _marked_attention if self.module.lent is None else _lent_attention
            if self.module.block is None:
                output = self.module(ids, positions, target_states, trace.inputs["own_states"], attend)
            else:
                output = self.module.step(ids, positions, self.module.joined(target_states), attend)
            logits = self.module.scores(output.read)
            trace.outputs |= {"logits": logits, "next_states": output.next_states}
            trace.outputs |= self.module.pair_outputs(logits, output.read, trace.inputs["logit_rows"], ids)
        finally:
            current_trace.reset(token)
        self.layers = dict(trace.layers)
        return tuple(trace.outputs[name] for name in output_names)


def _marked_attention(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    window = getattr(module, "window", 0) or None
    return tree_attention(module, query, key, value, None, module.scaling, sliding_window=window)[0]


def _lent_attention(module: Any, query: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    """Over what a layer of the target has left."""
    trace, number = current_trace.get(), module.lent_layer
    if number not in trace.keys:
        trace.keys[number] = torch.zeros(1, module.num_kv_heads, 1, module.head_dim)
        trace.outputs |= {f"present_{kind}.{number}": trace.inputs[f"past_{kind}.{number}"] for kind in _KINDS}
    key, value = trace.keys[number], torch.empty_like(trace.keys[number])  # neither is read
    return tree_attention(module, query, key, value, None, module.scaling, sliding_window=module.sliding_window)[0]


def _lent_rows(module: SpeculatorModule, kv_dtype: str) -> dict[str, torch.Tensor]:
    """Examples of the keys and values that are lent, by the names of the inputs."""
    return {
        f"past_{kind}.{number}": torch.zeros(
            _B, num_heads, _S, kv_row_size(kv_dtype, head_dim), dtype=getattr(torch, kv_dtype)
        )
        for number, (num_heads, head_dim) in sorted(module.lent_sizes.items())
        for kind in _KINDS
    }


def _kv_axes(prefix: str, num_layers: int) -> DynamicAxes:
    names = (f"{prefix}_{kind}.{index}" for index in range(num_layers) for kind in _KINDS)
    return {name: {0: "B", 2: "S"} for name in names}


def _example_inputs(module: SpeculatorModule, target_size: int) -> dict[str, torch.Tensor]:
    """Of every input that a speculator may have."""
    num_nodes, (num_kv_heads, head_dim) = _N1 + _N2, module.kv_sizes
    mask = torch.zeros(_B, 1, num_nodes, _PAST + num_nodes)
    kept = torch.zeros(_B, num_kv_heads, _S, head_dim)
    return {
        "input_ids": torch.ones(_B, num_nodes if module.block is None else _N2, dtype=torch.long),
        "position_ids": torch.arange(_PAST, _PAST + num_nodes).expand(_B, -1).contiguous(),
        "tree_mask": mask,
        "tree_mask_sliding": mask.clone(),
        "write_pos": torch.full((_B,), _PAST, dtype=torch.long),
        "logit_rows": torch.zeros(_B, _R, dtype=torch.long),
        "target_states": torch.zeros(_B, _N1, target_size),
        "own_states": torch.zeros(_B, _N2, module.state_size),
        **{name: kept for name in _kv_axes("past", module.num_layers)},
    }
