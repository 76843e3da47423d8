"""`reader-edge batch --ray`: a cluster of two answers a batch, and goes on where a worker is killed."""

import asyncio
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reader_edge.batch.batch import open_batch
from reader_edge.cli import main
from reader_edge.models.model_source import load_engine
from reader_edge_runtime import Engine, EngineConfig
from reader_edge_runtime.errors import BatchError
from tests.reader_edge.batch.conftest import Files, request

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'reader-edge[ray]'")

REQUESTS = [request(number, max_tokens=60) for number in range(40)]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes on this machine."""
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **memory})
    cluster.add_node(num_cpus=1, **memory)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_a_killed_worker_s_requests_are_answered_by_the_other(cluster: Any, tmp_path: Path) -> None:
    from reader_edge.batch.ray import RayBackend

    files = Files(tmp_path)
    files.write(*REQUESTS)
    assert files.run().exit_code == 0
    expected = files.texts()
    files.out = tmp_path / "ray.jsonl"
    load = partial(load_engine, None, EngineConfig(is_calibrated=False, threads=1, max_batch=2))
    backend = RayBackend(cluster.address, load, "demo", 100)
    workers = list(backend._num_pending)
    assert len(workers) == 2
    process_ids = ray.get([worker.__ray_call__.remote(lambda self: os.getpid()) for worker in workers])

    def kill_one(done: int, total: int) -> None:
        if done == 10:
            os.kill(process_ids[0], signal.SIGKILL)

    with open_batch(files.given, files.out) as batch:
        asyncio.run(batch.answer(backend, kill_one))
        assert batch.num_refused == 0
    assert files.texts() == expected
    assert workers[0] not in backend._num_pending


def test_a_model_that_a_node_has_not_is_one_sentence(cluster: Any) -> None:
    from reader_edge.batch.ray import RayBackend

    load = partial(load_engine, "no/such/folder/at/all", EngineConfig())
    with pytest.raises(BatchError, match=r"^A node of the Ray cluster has no engine \(.*nothing at.*\): install it"):
        RayBackend(cluster.address, load, "demo", 100)


def test_a_cluster_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.write(*REQUESTS[:1])
    for address in ("127.0.0.1:1", "nowhere", ":x"):
        result = CliRunner().invoke(main, ["batch", str(files.given), str(files.out), "--ray", address])
        assert result.exit_code == 1
        assert result.stderr.startswith(f"Error: The Ray cluster at '{address}' cannot be used (")
        assert result.stderr.count("\n") == 1


def test_warnings_of_nodes_about_drafting_reach_the_caller(cluster: Any) -> None:
    from reader_edge.batch.ray import RayBackend

    def load_where_widths_differ() -> Engine:
        from reader_edge_runtime import assembly
        from reader_edge_runtime.measuring.width_probe import WidthReport

        vars(assembly)["load_or_settle"] = lambda target, *_: (target, WidthReport(16, 4, 1e-5))
        return load_engine(None, EngineConfig(threads=1))

    backend = RayBackend(cluster.address, load_where_widths_differ, "demo", 100)
    (notice,) = backend.notices  # of both nodes
    assert "drafting is off" in notice
