"""Trace a patch decoder, by a config of Optimum, so that its graph follows the contract of `series_manifest`."""

from pathlib import Path

import torch
from optimum.exporters.tasks import TasksManager

from reader_edge_export.series.patch_module import MODEL_TYPE, PatchModule
from reader_edge_export.sources.module_weights import ModuleWeights
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.trace.tracing import TracedLayer
from reader_edge_export.trace.tree_config import EXAMPLE_SIZES, EXPORTER, TreeConfig, trace_model

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
