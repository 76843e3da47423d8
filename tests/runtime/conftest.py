"""The demo model in stages, each number of them cut once."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def split_demo(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """How many stages -> the folder of their pipeline; not to be changed."""
    pytest.importorskip("onnx_ir", reason="the extra 'export' is not installed")
    from reader_edge_export.split.split_package import split_package

    root = tmp_path_factory.mktemp("split")

    def split(num_stages: int) -> Path:
        folder = root / str(num_stages)
        if not folder.exists():
            split_package(demo_folder, folder, num_stages)
        return folder

    return split
