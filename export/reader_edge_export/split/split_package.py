"""split_package(): a package becomes the stages of a pipeline, in a folder that appears whole or not at all."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reader_edge_export.libraries import check_installation
from reader_edge_export.package.package_folder import check_target, new_package
from reader_edge_export.progress import OnShare, Progress
from reader_edge_export.split.stage_ranges import ranges, stage_ends
from reader_edge_runtime.errors import ConfigError, ExportError
from reader_edge_runtime.package.manifest import (
    COMMIT_NAME,
    GRAPH_NAME,
    HALF_PRECISIONS,
    ROW_ATTENTIONS,
    WEIGHTS_NAME,
    FileEntry,
    Manifest,
    file_entry,
)
from reader_edge_runtime.package.manifest_file import write_manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.package_parts import SPECULATOR_GRAPH_NAME, SPECULATOR_WEIGHTS_NAME, StagePart
from reader_edge_runtime.package.pipeline_file import FIRST_PORT, new_key, write_pipeline

if TYPE_CHECKING:
    import onnx_ir as ir

    from reader_edge_export.split.stage_graphs import StageGraphs

_NOT_COPIED = {GRAPH_NAME, WEIGHTS_NAME, SPECULATOR_GRAPH_NAME, SPECULATOR_WEIGHTS_NAME}


@dataclass(frozen=True, slots=True)
class SplitReport:
    """manifests: of the stages, in turn. has_left_speculator: whether the package had one, which no stage has."""

    manifests: Sequence[Manifest]
    has_left_speculator: bool


def split_package(
    package: Path,
    out: Path,
    num_stages: int,
    box_bytes: Sequence[int] = (),
    addresses: Sequence[str] = (),
    on_share: OnShare | None = None,
) -> SplitReport:
    """Write OUT/1 to OUT/N, pipeline.json and a new key.

    The longest stage is as short as memory allows, by passes of layers on this machine. box_bytes: as `stage_ends` has
    it. addresses: where the stages but the last will listen; loopback where none are given. on_share: gets the bytes
    that are written, and how many there are in all.
    Raises InstallationError, PackageError, ConfigError or ExportError.
    """
    check_installation(["onnx", "onnx_ir"], "Splitting")
    whole = ModelPackage.open(package)
    _check(whole)
    whole.check_files()
    folder = Path(os.path.abspath(out))
    check_target(folder, force=None)
    addresses = addresses or [f"tcp://127.0.0.1:{FIRST_PORT + number}" for number in range(num_stages - 1)]
    if len(addresses) != num_stages - 1:
        raise ConfigError(
            f"{num_stages} stages have {num_stages - 1} addresses, since the last one is where the answers are made; "
            f"got {len(addresses)}."
        )
    with new_package(folder, force=None) as partial:
        write_pipeline(partial, addresses)
        manifests = _write(whole, partial, num_stages, box_bytes, Progress(None, on_share))
        new_key(partial)
    return SplitReport(manifests, whole.manifest.speculator is not None)


def _check(package: ModelPackage) -> None:
    """Raise ExportError for a package that no stages are made of."""
    manifest, found = package.manifest, None
    if manifest.stage is not None:
        found = "is a stage itself: split the whole package"
    elif manifest.has_states:
        found = "has recurrent layers, whose states no pipeline moves yet: run it on one box"
    elif manifest.images is not None:
        found = "sees images, which no pipeline does yet: export the model with --no-images"
    elif manifest.adapted_products:
        found = "takes adapters, which no pipeline does yet: export the model without --takes-adapters"
    elif any(layer.shares is not None for layer in manifest.layers):
        found = "has layers that read the KV cache of others, which may lie in another box: run it on one"
    elif manifest.attention in ROW_ATTENTIONS or COMMIT_NAME in manifest.files:
        found = "is made for other engines or devices, and stages run on CPUs: export it with --attention exact"
    elif manifest.precision in HALF_PRECISIONS:
        found = f"is in {manifest.precision}, which a cut would round elsewhere: export it with another --precision"
    if found is not None:
        raise ExportError(f"'{package.folder}' {found}.")


def _write(
    whole: ModelPackage, folder: Path, num_stages: int, box_bytes: Sequence[int], progress: Progress
) -> list[Manifest]:
    import onnx_ir as ir

    from reader_edge_export.split.stage_graphs import StageGraphs, layer_seconds

    graphs = StageGraphs(ir.load(whole.path(GRAPH_NAME)), whole.manifest)
    sizes = graphs.layer_bytes
    ends = stage_ends(sizes, num_stages, sizes, box_bytes, graphs.ends)  # refused before layers are timed
    if num_stages < len(sizes):
        seconds = layer_seconds(sizes, partial(_write_stage, whole, graphs))
        ends = stage_ends(seconds, num_stages, sizes, box_bytes, graphs.ends)
    advance = progress.share(sum(sizes))
    manifests = []
    for number, layers in enumerate(ranges(ends), 1):
        manifests.append(_write_stage(whole, graphs, folder / str(number), layers, number, num_stages))
        advance(sum(sizes[layers.start : layers.stop]))
    return manifests


def _write_stage(
    whole: ModelPackage, graphs: "StageGraphs", place: Path, layers: range, number: int, num_stages: int
) -> Manifest:
    place.mkdir()
    files = _write_graph(graphs.stage(layers), place)
    if number == num_stages:
        for name in whole.manifest.files.keys() - _NOT_COPIED:
            shutil.copyfile(whole.path(name), place / name)
            files[name] = whole.manifest.files[name]
    manifest = whole.manifest
    part = StagePart(number, num_stages, layers.start, manifest.num_layers, graphs.width, whole.fingerprint().hex())
    manifest = replace(
        manifest,
        num_layers=len(layers),
        layers=manifest.layers[layers.start : layers.stop],
        state_ids=(),
        speculator=None,
        files=files,
        stage=part,
    )
    write_manifest(place, manifest)
    return manifest


def _write_graph(model: "ir.Model", folder: Path) -> dict[str, FileEntry]:
    """Write a stage's graph, and its own weights beside it."""
    import onnx_ir as ir

    from reader_edge_export.onnx_graph.weight_file import WeightFile

    with WeightFile(folder) as weights:
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                value.const_value = weights.add(tensor.numpy(), tensor.dtype, str(value.name))
    graph = folder / GRAPH_NAME
    ir.save(model, graph)
    return {GRAPH_NAME: file_entry(graph), WEIGHTS_NAME: weights.entry}
