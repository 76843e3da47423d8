"""A tiny forecasting model with random weights, its folder and its package."""

from pathlib import Path

import torch

from reader_edge_export.progress import Progress
from reader_edge_series.export.checkpoint import write_checkpoint
from reader_edge_series.export.patch_module import PatchConfig, PatchModule
from reader_edge_series.export.series_export import export_series


def tiny_modules() -> tuple[PatchModule, PatchModule]:
    torch.manual_seed(1)
    modules = PatchModule(PatchConfig.of_sizes(2, 32, 3)), PatchModule(PatchConfig.of_sizes(1, 32, 1))
    for module in modules:
        module.train(False)
    return modules


def tiny_package(folder: Path) -> Path:
    """In `folder`, beside what it was exported from."""
    write_checkpoint(folder / "trained", *tiny_modules())
    export_series(folder / "trained", folder / "package", Progress())
    return folder / "package"
