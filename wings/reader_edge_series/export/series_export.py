"""export_series(): a trained folder becomes a package, or nothing does."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx_ir as ir
import torch
from optimum.exporters.tasks import TasksManager

from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.libraries import quiet_libraries
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.options import ExportOptions
from reader_edge_export.package.package_folder import check_target, new_package
from reader_edge_export.package.source_files import version_of
from reader_edge_export.package_graph import GraphKind, write_graph
from reader_edge_export.progress import Progress
from reader_edge_export.sources.source_model import ModuleWeights, SourceModel
from reader_edge_export.trace.tracing import TracedLayer
from reader_edge_export.trace.tree_config import EXAMPLE_SIZES, EXPORTER, TreeConfig, trace_model
from reader_edge_runtime.errors import ParityError
from reader_edge_runtime.package.manifest import FileEntry
from reader_edge_runtime.package.model_package import PackageFiles
from reader_edge_series.export.checkpoint import read_checkpoint
from reader_edge_series.export.patch_module import MODEL_TYPE, PatchModule
from reader_edge_series.patch_target import HostPatches, PatchTarget
from reader_edge_series.series_manifest import (
    DRAFT_NAME,
    MODEL_NAME,
    SERIES_MANIFEST_NAME,
    SIZES_PROPERTY,
    PatchSizes,
    SeriesManifest,
    write_series_manifest,
)

MAX_ERROR = 1e-5
_PASSES = (24, 1, 4, 60, 3, 1, 30)  # patches at once; together more than a window
_NUM_CHAINS = 2


def check_patches(target: PatchTarget, module: PatchModule) -> float:
    """The largest difference of any number, over the largest number. Raises ParityError beyond MAX_ERROR."""
    sizes = target.sizes
    chains = np.random.default_rng(0).standard_normal((_NUM_CHAINS, sum(_PASSES), sizes.patch_size))
    patches = np.cumsum(0.3 * chains, axis=1).clip(-4, 4).astype(np.float32)
    with torch.no_grad():
        expected = module.score(torch.from_numpy(patches)).numpy()
    cache, found, start = target.new_cache(_NUM_CHAINS, 8), [], 0
    for number in _PASSES:
        rows = np.broadcast_to(np.arange(number), (_NUM_CHAINS, number))
        found.append(target.forward(cache, 0, patches[:, start : start + number], rows))
        for slot in range(_NUM_CHAINS):
            cache.commit(slot, range(number))
        start += number
    error = float(np.abs(np.concatenate(found, axis=1) - expected).max() / max(1.0, np.abs(expected).max()))
    if not error <= MAX_ERROR:
        raise ParityError(f"The graph strays by {error:.2g} from its module: please report it.")
    return error


TASK = "time-series-forecasting"  # by Optimum's names


class PatchTreeConfig(TreeConfig):
    """Nodes are patches."""

    NODES = "patches"

    def example_nodes(self) -> torch.Tensor:
        return torch.zeros(*EXAMPLE_SIZES, self._config.patch_size)


TasksManager.create_register(EXPORTER)(MODEL_TYPE, TASK)(PatchTreeConfig)


def trace_patches(module: PatchModule, graph: Path) -> tuple[SourceModel, list[TracedLayer]]:
    """Write a module with its markers to `graph`; returns it as a source, and what its layers ask for."""
    source = SourceModel(module, ModuleWeights(module))
    return source, trace_model(source, module.config.max_position_embeddings, graph, task=TASK)


_VERSIONS = ("torch", "transformers", "optimum", "onnx", "onnxruntime", "reader-edge")
_OPTIONS = ExportOptions("fp32", check="none")


def export_series(checkpoint: Path, out: Path, progress: Progress, is_forced: bool = False) -> SeriesManifest:
    """Export what `reader-edge series train` wrote to a package at `out`. Raises ExportError."""
    folder = Path(os.path.abspath(out))
    check_target(folder, is_forced, SERIES_MANIFEST_NAME)
    with quiet_libraries():
        with progress.enter("reading the source"):
            module, small = read_checkpoint(checkpoint)
        with (
            new_package(folder, is_forced, manifest_name=SERIES_MANIFEST_NAME) as partial,
            TemporaryDirectory() as work,
        ):
            files: dict[str, FileEntry] = {}
            checks = {}
            for name, each in ((MODEL_NAME, module), (DRAFT_NAME, small)):
                if each is not None:
                    with progress.enter(f"writing {name}"):
                        files |= _write(each, name, partial, Path(work))
                    with progress.enter(f"comparing {name}"):
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
        editor.model.metadata_props[SIZES_PROPERTY] = sizes_of(module).to_json()
        output = next(value for value in editor.graph.outputs if value.name == "logits")
        output.name, output.shape = "parameters", ir.Shape(["B", "R", sizes_of(module).num_outputs])

    source, _ = trace_patches(module, work / name)
    kind = GraphKind(name, f"{name}.data", report)
    return write_graph(work / name, folder, _OPTIONS, Calibration(), source, kind=kind)
