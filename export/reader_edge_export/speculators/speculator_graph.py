"""The graph of a speculator beside that of its target, in a package that is being written."""

from pathlib import Path

import onnx_ir as ir

from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.options import ExportOptions
from reader_edge_export.package_graph import GraphPart, add_log_sum_exp, add_top_logits, write_graph
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.speculators.lent_embedding import look_up_in_target
from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.stages import Stages
from reader_edge_runtime.package.manifest import GRAPH_NAME, FileEntry
from reader_edge_runtime.package.speculator_part import SPECULATOR_GRAPH_NAME, SPECULATOR_WEIGHTS_NAME

TOP_K = 16


def speculator_options(target: ExportOptions) -> ExportOptions:
    """How a speculator is stored: in fp32 beside a target in fp32, else in int8. target: its options, not AUTO."""
    return ExportOptions("fp32" if target.precision == "fp32" else "int8", kv="fp32", check="none")


def write_speculator(
    traced: Path,
    folder: Path,
    options: ExportOptions,
    calibration: Calibration,
    source: SourceModel,
    stages: Stages,
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
        ids = module.target_ids
        token_ids = None if ids is None else editor.constant(ids.numpy(), "target_ids")
        add_top_logits(editor, TOP_K, token_ids)
        add_log_sum_exp(editor)
        outputs = {value.name: value for value in editor.graph.outputs}
        outputs["next_states"].shape = ir.Shape(["B", "N", module.config.hidden_size])
        editor.graph.outputs.remove(outputs["logits"])

    def borrow(editor: GraphEditor) -> None:
        if lends_embedding:
            look_up_in_target(editor, folder / GRAPH_NAME)

    part = GraphPart(SPECULATOR_GRAPH_NAME, SPECULATOR_WEIGHTS_NAME, report, is_beside_target, borrow)
    return write_graph(traced, folder, options, calibration, source, None, stages, part=part)
