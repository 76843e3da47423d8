"""A Ray cluster of two nodes on this machine, and a pipeline for it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    sizes = {"object_store_memory": 100 << 20, "memory": 1 << 30}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **sizes})
    cluster.add_node(num_cpus=1, **sizes)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def split_once(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnx_ir", reason="the extra 'export' is not installed")
    from reader_edge_export.split.split_package import split_package

    folder = tmp_path_factory.mktemp("split") / "3"
    split_package(demo_folder, folder, 3)
    return folder


@pytest.fixture
def pipeline(split_once: Path, tmp_path: Path) -> Path:
    """Of three stages, with a key."""
    return shutil.copytree(split_once, tmp_path / "out")
