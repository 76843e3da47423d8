"""`reader-edge stage --ray` where a whole node of the cluster is lost: its stages go to another that has the memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reader_edge_runtime import EngineConfig
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.pipeline.open_pipeline import open_pipeline
from reader_edge_runtime.package.model_package import ModelPackage
from tests.reader_edge.cluster.told import Told, node_of, serving
from tests.stages_here import assert_same_rows

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'reader-edge[ray]'")
pytest.importorskip("zmq", reason="the extra 'pipeline' is not installed")

from reader_edge.cluster import stage_cluster  # noqa: E402 (needs the extra)
from reader_edge.cluster.stage_cluster import StageCluster  # noqa: E402

CONFIG = EngineConfig(threads=1)
ROOM = {"num_cpus": 1, "object_store_memory": 100 << 20, "memory": 400 << 20}  # for one stage


@pytest.fixture
def attentive_cluster() -> Iterator[Any]:
    """A head without room and two nodes, whose loss it notices within a second or two."""
    from ray.cluster_utils import Cluster

    config = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200, "health_check_failure_threshold": 5}
    head = {**ROOM, "memory": 1 << 20, "include_dashboard": False, "_system_config": config}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(**ROOM)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.long
def test_a_lost_nodes_stage_waits_for_room_and_goes_on_there(
    attentive_cluster: Any, pipeline: Path, demo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_cluster, "_MOVED_S", 1.0)
    cluster, told = attentive_cluster, Told()
    whole = HostTarget.open(ModelPackage.open(demo_folder), 1)
    with StageCluster(pipeline, cluster.address, CONFIG, told) as stages:
        nodes = ray.get([each.__ray_call__.remote(node_of) for each in stages.stages])
        lost = next(node for node in cluster.worker_nodes if node.node_id == nodes[0])
        with serving(stages):
            told.wait_for(" of 3 listens at tcp://", 2)
            piped = open_pipeline(ModelPackage.open(pipeline), CONFIG)
            piped.under_way.following.patience_s = 60.0  # type: ignore[attr-defined]
            assert_same_rows(whole, piped, 3)
            cluster.remove_node(lost, allow_graceful=False)
            told.wait_for("A node is lost. The Ray cluster has no room for stages of 2", 1)
            assert sum("A node is lost" in line for line in told.lines) == 1
            new = cluster.add_node(**ROOM)
            with pytest.warns(RuntimeWarning, match="Stage 1 at .* is gone"):
                assert_same_rows(whole, piped, 3, seed=1)
        told.wait_for("Stage 1 of 3 listens at tcp://", 2)
        assert ray.get([each.__ray_call__.remote(node_of) for each in stages.stages]) == [new.node_id, nodes[1]]
