"""The demo model in stages, each number of them cut once, and as it is served."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reader_edge import AsyncEngine
from reader_edge_runtime import Engine


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


@pytest.fixture
def served(engine: Engine) -> Iterator[AsyncEngine]:
    served = AsyncEngine(engine)
    yield served
    asyncio.run(served.close(cancels=True))
    assert engine.decoder.prefill_budget.limit is None
