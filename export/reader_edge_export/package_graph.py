"""Builds the ONNX graph and weights of a package from the trace: lowers attention, fuses, quantizes, stores."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.rewriter import RewriteRuleSet
from onnxscript.rewriter.rules.common import no_op_cast_rule

from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.fusion import MERGED_HEADS, NORMS, fuse_heads, fuse_rotary, fuse_swiglu
from reader_edge_export.journal import Journal
from reader_edge_export.lowering.attention_lowering import lower_attention
from reader_edge_export.lowering.portable import narrow_inputs
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.onnx_graph.insert_matrices import insert_matrices
from reader_edge_export.onnx_graph.sizes import fold_sizes
from reader_edge_export.onnx_graph.weight_file import OtherWeights, WeightFile
from reader_edge_export.operators.low_rank import AdaptedProducts
from reader_edge_export.options import ExportOptions
from reader_edge_export.progress import Advance, Progress
from reader_edge_export.quantize.linear import not_adapted
from reader_edge_export.quantize.vocabulary import HIDDEN_STATES
from reader_edge_export.quantize.weight_storage import OnChoice, num_stored, store_weights, unseen_choice
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.sources.weights import ExpertsTensor, matrix_of
from reader_edge_runtime.package.manifest import (
    GRAPH_NAME,
    HALF_PRECISIONS,
    LOWERING_PROPERTY,
    QUANTIZED_PRECISIONS,
    ROW_ATTENTIONS,
    WEIGHTS_NAME,
    FileEntry,
    file_entry,
    lowering_id,
)

TOP_K = 8
_COMMIT_TYPES = {"float32": "float", "float16": "float16", "bfloat16": "bfloat16"}
_COMMIT_GRAPH = """
<ir_version: 11, opset_import: ["" : 24]>
commit (KV kv, int64[K] rows, int64[C] write_pos) => (KV moved) {
  kept = Gather <axis = 2> (kv, rows)
  moved = TensorScatter <axis = 2> (kv, kept, write_pos)
}
"""


@dataclass(frozen=True, slots=True)
class GraphKind:
    """A kind of graph that packages have: a target's, a speculator's.

    report: adds its outputs beside those of the trace. is_beside_target: whether the target was written before, to
    whose weights it refers. borrow: has it read matrices of the target's graph, before its own are stored. lower: of a
    graph that keeps nothing of a text, what is done in place of all else; it gets what counts the weights stored.
    """

    graph_name: str
    weights_name: str
    report: Callable[[GraphEditor, ExportOptions], None]
    is_beside_target: bool = False
    borrow: Callable[[GraphEditor], None] = lambda editor: None
    lower: Callable[[GraphEditor, Advance], None] | None = None


def write_graph(
    traced: Path,
    folder: Path,
    options: ExportOptions,
    calibration: Calibration,
    source: SourceModel,
    journal: Journal | None = None,
    progress: Progress | None = None,
    on_choice: OnChoice = unseen_choice,
    kind: GraphKind | None = None,
    adapted: AdaptedProducts | None = None,
) -> dict[str, FileEntry]:
    """Lower the graph at `traced` as the options say and write it, with its weights beside it, into `folder`.

    calibration: of the source; looked into for quantised weights only. journal: of the export into `folder`, if there
    is one. progress: of the export, which count the weights stored. on_choice: of `store_weights`. kind: None for the
    target. adapted: notes the products that take adapters; None where none is to. Returns what was written, by file
    name. Raises ExportError, and what `on_choice` does.
    """
    model, kind = ir.load(traced), kind or TARGET
    # Weights beyond 2 GB come in a side file, and constants that stay nodes would go on pointing there.
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    other = OtherWeights(folder / GRAPH_NAME, folder / WEIGHTS_NAME) if kind.is_beside_target else None
    with WeightFile(folder, journal, kind.weights_name, other) as weights:
        editor = GraphEditor(model, weights)
        insert_matrices(editor, source)
        advance = (progress or Progress()).share(num_stored(model.graph, options.precision))
        if kind.lower is None:
            _lower(editor, options, calibration, journal, advance, on_choice, kind, adapted)
        else:
            kind.lower(editor, advance)
        for value in model.graph.initializers.values():
            value.const_value = _written(value, weights, advance)
    if kind.lower is None:
        num_heads = source.skeleton.config.num_attention_heads
        model.metadata_props[LOWERING_PROPERTY] = lowering_id(options.precision, options.attention, num_heads)
    graph = folder / kind.graph_name
    ir.save(model, graph)
    onnx.checker.check_model(graph, full_check=True)
    return {kind.graph_name: file_entry(graph), kind.weights_name: weights.entry}


def _written(value: ir.Value, weights: WeightFile, advance: Advance) -> ir.TensorProtocol:
    """An initializer's tensor as the package has it: in the file of weights, or small and in the graph."""
    tensor = value.const_value
    assert tensor is not None
    if isinstance(tensor, ir.ExternalTensor) and tensor.location in weights.names:
        return tensor
    advance(tensor.size)
    name, matrix = str(value.name), matrix_of(value)
    if matrix is not None and not matrix.is_transposed and weights.takes(tensor.nbytes):
        return weights.add_parts(matrix.row_parts(), tensor.dtype, matrix.shape, name)
    if isinstance(tensor, ExpertsTensor):
        return weights.add_parts(tensor.parts(), tensor.dtype, tensor.matrices.shape, name)
    if weights.takes(tensor.nbytes):
        return weights.add(tensor.numpy(), tensor.dtype, name)
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name)


def _lower(
    editor: GraphEditor,
    options: ExportOptions,
    calibration: Calibration,
    journal: Journal | None,
    advance: Advance,
    on_choice: OnChoice,
    kind: GraphKind,
    adapted: AdaptedProducts | None,
) -> None:
    model = editor.model
    common.DeduplicateInitializersPass()(model)
    common.IdentityEliminationPass()(model)  # weights that are equal come as one, and as copies of it
    _add_unread_inputs(model.graph)
    is_portable = options.attention in ROW_ATTENTIONS
    is_half = options.precision in HALF_PRECISIONS and not is_portable  # which has matrices alone in fp16
    fold_sizes(editor)
    if not is_portable:
        # Models that also run in half precision leave casts from fp32 to fp32 everywhere.
        RewriteRuleSet([no_op_cast_rule]).apply_to_model(model)
        common.IdentityEliminationPass()(model)
        fuse_rotary(editor)
    if is_half:
        NORMS.apply_to_model(model)
    lower_attention(editor, options.attention, options.precision in QUANTIZED_PRECISIONS, options.kv_dtype, is_half)
    common.CommonSubexpressionEliminationPass()(model)  # sizes, masks and angles are the same in all layers
    kind.borrow(editor)
    adapt = not_adapted if adapted is None else partial(adapted.add, editor)
    store_weights(editor, options.precision, is_portable, calibration, journal, advance, on_choice, adapt)
    if adapted is not None:
        adapted.place()
    if options.attention == "exact" and not is_half:  # products that share their rows are one by now
        fuse_swiglu(editor)
        fuse_heads(editor)
        MERGED_HEADS.apply_to_model(model)
    kind.report(editor, options)
    for tidy in (common.IdentityEliminationPass(), common.RemoveUnusedNodesPass(), common.RemoveUnusedOpsetsPass()):
        tidy(model)


def _report_answers(editor: GraphEditor, options: ExportOptions) -> None:
    if options.attention in ROW_ATTENTIONS:  # whose engines would take longer for the best logits than for all else
        narrow_inputs(editor)
    else:
        add_top_logits(editor, TOP_K)
    if options.is_for_devices:
        add_log_sum_exp(editor)
    else:
        editor.graph.outputs.append(_value(editor.graph, HIDDEN_STATES))


def _add_unread_inputs(graph: ir.Graph) -> None:
    """Inputs of the contract that no layer reads: all have windows, or none has positions."""
    present = {value.name for value in graph.inputs}
    for name, sizes, dtype in (
        ("tree_mask", ("B", 1, "N", "M"), ir.DataType.FLOAT),
        ("position_ids", ("B", "N"), ir.DataType.INT64),
    ):
        if name not in present:
            graph.inputs.append(ir.Value(name=name, shape=ir.Shape(sizes), type=ir.TensorType(dtype)))


def add_top_logits(editor: GraphEditor, top_k: int, token_ids: ir.Value | None = None) -> None:
    """Report each row's best successors, so that drafting learns from rejected rows without reading whole ones.

    token_ids: int64 (V,), of the logits, or (B, R, V) of those of each row; None where they are in order.
    """
    logits = _output(editor, "logits")
    vocab_size = logits.shape[-1] if logits.shape is not None else None
    top_k = min(top_k, vocab_size) if isinstance(vocab_size, int) else top_k
    values, indices = editor.op_multi("TopK", [logits, editor.int64s(top_k)], 2, {"axis": -1})
    indices.dtype = ir.DataType.INT64
    if token_ids is not None:
        is_by_row = token_ids.shape is not None and len(token_ids.shape) > 1
        pick, how = ("GatherElements", {"axis": -1}) if is_by_row else ("Gather", {})
        indices = editor.op(pick, [token_ids, indices], how, dtype=ir.DataType.INT64)
    _report(editor, indices, "top_ids", "B", "R", top_k)
    _report(editor, values, "top_logits", "B", "R", top_k)


def add_log_sum_exp(editor: GraphEditor) -> None:
    """Report what turns a row's logits into log-probabilities, so that no row is read for one."""
    last, first = editor.int64s(-1), [editor.int64s(n) for n in (0, 1, 2)]
    best = editor.op("Slice", [_output(editor, "top_logits"), *first])
    powers = editor.op("Exp", [editor.op("Sub", [_output(editor, "logits"), best])])
    # Not ReduceLogSumExp: for a few rows of a large vocabulary CUDA takes 16 ms for it.
    total = editor.op("ReduceSum", [powers, last], {"keepdims": 1})
    sums = editor.op("Add", [editor.op("Log", [total]), best])
    _report(editor, editor.op("Squeeze", [sums, last]), "log_sum_exp", "B", "R")


def _report(editor: GraphEditor, value: ir.Value, name: str, *sizes: int | str) -> None:
    editor.append()
    value.name, value.shape = name, ir.Shape(sizes)
    editor.graph.outputs.append(value)


def _output(editor: GraphEditor, name: str) -> ir.Value:
    return next(value for value in editor.graph.outputs if value.name == name)


def _value(graph: ir.Graph, name: str) -> ir.Value:
    return next(value for node in graph for value in node.outputs if value.name == name)


TARGET = GraphKind(GRAPH_NAME, WEIGHTS_NAME, _report_answers)


def write_commit_graph(graph: Path, kv_dtype: str, num_kv_heads: int, head_dim: int) -> None:
    """Write the graph that keeps a walked path's KV rows where the cache lies on a device.

    Inputs: `kv` (C, H, S, D), key or value of C (layer, slot) pairs; `rows` int64 (K,), the rows to keep; `write_pos`
    int64 (C,), where they go. Output: `moved`, bound to the memory of `kv`. The rows are gathered before they are
    written, so they may overlap.
    """
    kv_type = f"{_COMMIT_TYPES[kv_dtype]}[C,{num_kv_heads},S,{head_dim}]"
    onnx.save(onnx.parser.parse_model(_COMMIT_GRAPH.replace("KV", kv_type)), graph)
    onnx.checker.check_model(graph, full_check=True)
