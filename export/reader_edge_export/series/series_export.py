"""export_series(): a trained folder becomes a package, or nothing does."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx_ir as ir

from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.libraries import quiet_libraries
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.options import ExportOptions
from reader_edge_export.package.export_key import version_of
from reader_edge_export.package.package_folder import check_target, new_package
from reader_edge_export.package_graph import GraphPart, write_graph
from reader_edge_export.series.checkpoint import read_checkpoint
from reader_edge_export.series.patch_check import check_patches
from reader_edge_export.series.patch_module import PatchModule
from reader_edge_export.series.trace_patches import trace_patches
from reader_edge_export.stages import Stages
from reader_edge_runtime.package.manifest import FileEntry
from reader_edge_runtime.package.package_files import PackageFiles
from reader_edge_runtime.series.host_patches import HostPatches
from reader_edge_runtime.series.series_manifest import (
    DRAFT_NAME,
    MODEL_NAME,
    SERIES_MANIFEST_NAME,
    SIZES_PROPERTY,
    PatchSizes,
    SeriesManifest,
    write_series_manifest,
)

_VERSIONS = ("torch", "transformers", "optimum", "onnx", "onnxruntime", "reader-edge")
_OPTIONS = ExportOptions("fp32", check="none")


def export_series(checkpoint: Path, out: Path, stages: Stages, is_forced: bool = False) -> SeriesManifest:
    """Export what `reader-edge series train` wrote to a package at `out`. Raises ExportError."""
    folder = Path(os.path.abspath(out))
    check_target(folder, is_forced, SERIES_MANIFEST_NAME)
    with quiet_libraries():
        with stages.enter("reading the source"):
            module, small = read_checkpoint(checkpoint)
        with (
            new_package(folder, is_forced, manifest_name=SERIES_MANIFEST_NAME) as partial,
            TemporaryDirectory() as work,
        ):
            files: dict[str, FileEntry] = {}
            checks = {}
            for name, each in ((MODEL_NAME, module), (DRAFT_NAME, small)):
                if each is not None:
                    with stages.enter(f"writing {name}"):
                        files |= _write(each, name, partial, Path(work))
                    with stages.enter(f"comparing {name}"):
                        target = HostPatches.open(PackageFiles(partial, files), name, sizes_of(each), threads=1)
                        checks[f"{name} error"] = check_patches(target, each)
            draft = None if small is None else sizes_of(small)
            versions = {each: version_of(each) for each in _VERSIONS}
            manifest = SeriesManifest(sizes_of(module), draft, checkpoint.name, checks, versions, files)
            write_series_manifest(partial, manifest)
    return manifest


def sizes_of(module: PatchModule) -> PatchSizes:
    config = module.config
    return PatchSizes(
        num_layers=config.num_hidden_layers,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        num_patches=config.num_patches,
        patch_size=config.patch_size,
        window=config.window,
        min_prompt=config.min_prompt,
        max_prompt=config.max_prompt,
        max_context=config.max_position_embeddings,
    )


def _write(module: PatchModule, name: str, folder: Path, work: Path) -> dict[str, FileEntry]:
    def report(editor: GraphEditor, _: ExportOptions) -> None:
        editor.model.metadata_props[SIZES_PROPERTY] = sizes_of(module).told
        output = next(value for value in editor.graph.outputs if value.name == "logits")
        output.name, output.shape = "parameters", ir.Shape(["B", "R", sizes_of(module).num_outputs])

    source, _ = trace_patches(module, work / name)
    part = GraphPart(name, f"{name}.data", report)
    return write_graph(work / name, folder, _OPTIONS, Calibration(), source, part=part)
