"""`reader-edge stage --ray`: a cluster's nodes serve the stages of a pipeline, and again where one was killed."""

import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge_runtime import EngineConfig
from reader_edge_runtime.errors import ClusterError, PackageError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.pipeline.open_pipeline import open_pipeline
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.pipeline_file import read_pipeline
from tests.reader_edge.cluster.told import Told, node_of, serving
from tests.stages_here import assert_same_rows

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'reader-edge[ray]'")
pytest.importorskip("zmq", reason="the extra 'pipeline' is not installed")

from reader_edge.cluster import connection, placed_stage, stage_cluster  # noqa: E402 (needs the extra)
from reader_edge.cluster.placed_stage import PlacedStage  # noqa: E402
from reader_edge.cluster.stage_cluster import StageCluster  # noqa: E402

CONFIG = EngineConfig(threads=1)


def test_a_cluster_serves_the_stages_and_again_after_a_kill(cluster: Any, pipeline: Path, demo_folder: Path) -> None:
    told, whole = Told(), HostTarget.open(ModelPackage.open(demo_folder), 1)
    with StageCluster(pipeline, cluster.address, CONFIG, told) as stages:
        assert list(read_pipeline(pipeline)) == stages.addresses
        nodes = ray.get([each.__ray_call__.remote(node_of) for each in stages.stages])
        assert len(set(nodes)) == 2
        with serving(stages):
            told.wait_for(" of 3 listens at tcp://", 2)
            piped = open_pipeline(ModelPackage.open(pipeline), CONFIG)
            assert_same_rows(whole, piped, 3)
            os.kill(ray.get(stages.stages[0].__ray_call__.remote(_process)), signal.SIGKILL)
            with pytest.warns(RuntimeWarning, match="Stage 1 at .* is gone"):
                assert_same_rows(whole, piped, 3, seed=1)
            told.wait_for("Stage 1 of 3 listens at tcp://", 2)
        assert ray.get([each.__ray_call__.remote(node_of) for each in stages.stages]) == nodes


def test_a_stage_that_was_moved_is_found_where_pipeline_json_says(
    cluster: Any, pipeline: Path, demo_folder: Path
) -> None:
    told = Told()
    with StageCluster(pipeline, cluster.address, CONFIG, told) as stages:
        here, stages.addresses[1] = stages.addresses[1], "tcp://198.51.100.1:5551"  # as another node's
        with serving(stages):
            told.wait_for(" of 3 listens at tcp://", 2)
        assert list(read_pipeline(pipeline))[1] == stages.addresses[1] == here


def test_a_cluster_without_room_is_one_sentence(cluster: Any, pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_cluster, "_PLACED_S", 0.5)
    monkeypatch.setattr(stage_cluster, "_PROCESS_BYTES", 2 << 30)
    with pytest.raises(
        ClusterError, match=r"no room for stages of 2\.\d GB, 2\.\d GB: its nodes have 1\.1 GB, 1\.1 GB,"
    ):
        StageCluster(pipeline, cluster.address, CONFIG, print)
    assert not ray.is_initialized()


def test_a_lost_node_without_another_that_has_room_is_told_once(
    cluster: Any, pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = ["CREATED", *["RESCHEDULING"] * 4, "CREATED", "RESCHEDULING", "RESCHEDULING"]
    rounds = iter(states)
    monkeypatch.setattr(stage_cluster, "placement_group_table", lambda group: {"state": next(rounds)})
    monkeypatch.setattr(stage_cluster, "_MOVED_S", 0.0)
    told, turns = Told(), iter([*[False] * len(states), True])
    with StageCluster(pipeline, cluster.address, CONFIG, told) as stages:
        stages.serve(lambda: next(turns))
    lost = [
        line for line in told.lines if line.startswith("A node is lost. The Ray cluster has no room for stages of 2")
    ]
    assert len(lost) == 2


def test_a_node_that_has_not_the_stage_is_one_sentence(cluster: Any, pipeline: Path) -> None:
    with StageCluster(pipeline, cluster.address, CONFIG, print) as stages:
        shutil.rmtree(pipeline / "2")
        with pytest.raises(
            ClusterError,
            match=rf"^Stage 2 cannot be served at {stages.addresses[1]}: No model package at '{pipeline}/2'",
        ):
            stages.serve()


def test_a_node_that_cannot_serve_is_one_sentence(
    cluster: Any, pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(PlacedStage):
        def address(self) -> str:
            raise ModuleNotFoundError("No module named 'zmq'")

    monkeypatch.setattr(stage_cluster, "PlacedStage", Odd)
    with pytest.raises(ClusterError, match=r"^A node .* serves no stage \(.*No module named 'zmq'\): install"):
        StageCluster(pipeline, cluster.address, CONFIG, print)


def test_a_cluster_that_ends_meanwhile_is_one_sentence(
    cluster: Any, pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*given: object, **options: object) -> object:
        raise ray.exceptions.RaySystemError("The head is gone.")

    with StageCluster(pipeline, cluster.address, CONFIG, print) as stages:
        monkeypatch.setattr(ray, "wait", lost)
        with pytest.raises(
            ClusterError, match=r"^The Ray cluster serves the stages no more \(.*The head is gone\): see"
        ):
            stages.serve()


def test_a_pipeline_is_served_by_one_command_at_a_time(cluster: Any, pipeline: Path) -> None:
    with StageCluster(pipeline, cluster.address, CONFIG, print):
        written = (pipeline / "pipeline.json").read_bytes()
        with pytest.raises(
            ClusterError, match=rf"^Another `reader-edge stage --ray` serves '{pipeline}': end it first"
        ):
            StageCluster(pipeline, cluster.address, CONFIG, print)
        assert (ray.is_initialized(), (pipeline / "pipeline.json").read_bytes()) == (True, written)
    with StageCluster(pipeline, cluster.address, CONFIG, print):
        assert sorted(path.name for path in pipeline.glob("pipeline.json*")) == ["pipeline.json", "pipeline.json.lock"]


def test_a_folder_that_is_no_pipeline_is_refused(demo_folder: Path) -> None:
    with pytest.raises(PackageError, match=r"is no pipeline: give the folder that `reader-edge split` wrote"):
        StageCluster(demo_folder, "127.0.0.1:1", CONFIG, print)


def test_a_placed_stage_listens_at_a_port_of_its_own(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(placed_stage, "serve_package_stage", lambda *given: given[-1](str(given[:-1])))
    stage = PlacedStage(pipeline, 2, 3, CONFIG)
    address = stage.address()
    port = int(address.rpartition(":")[2])
    assert (address, (port - 5552) % 3) == (f"tcp://127.0.0.1:{port}", 0)
    stage.serve(address)
    assert stage.next_line() == str((pipeline / "2", address, pipeline / "pipeline.key", CONFIG))
    with socket.create_server(("127.0.0.1", port)):
        assert stage.address() != address
        monkeypatch.setattr(placed_stage, "_END_OF_PORTS", port + 1)
        with pytest.raises(ClusterError, match=rf"^No port below {port + 1} of 127\.0\.0\.1 is free for stage 2"):
            stage.address()


def test_the_command_serves_on_a_cluster(pipeline: Path, runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[object] = []

    class Cluster(StageCluster):
        def __init__(self, *given: object) -> None:
            served.extend(given[:2])

        def serve(self, is_stopped: Callable[[], bool] = bool) -> None:
            served.append("served")
            os.kill(os.getpid(), signal.SIGTERM)

        def _end(self) -> None:
            served.append("ended")

    monkeypatch.setattr(stage_cluster, "StageCluster", Cluster)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        done = runner.invoke(main, ["stage", str(pipeline), "--ray", "10.0.0.1:6379"])
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert (done.exit_code, done.stderr) == (130, "Interrupted.\n")
    assert served == [pipeline, "10.0.0.1:6379", "served", "ended"]


def test_what_is_no_cluster_is_one_sentence_soon(
    pipeline: Path, runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_ANSWER_S", 1.0)
    written = (pipeline / "pipeline.json").read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        told = runner.invoke(main, ["stage", str(pipeline), "--ray", address])
    assert told.exit_code == 1
    assert told.stderr == (
        f"Error: The Ray cluster at '{address}' cannot be used (no cluster of Ray {ray.__version__} answers within 1 "
        "seconds): give its HOST:PORT.\n"
    )
    assert (pipeline / "pipeline.json").read_bytes() == written


def test_a_cluster_that_is_not_there_is_one_sentence(pipeline: Path, runner: CliRunner) -> None:
    told = runner.invoke(main, ["stage", str(pipeline), "--ray", "127.0.0.1:1"])
    assert (told.exit_code, told.stderr.count("\n")) == (1, 1)
    assert told.stderr.startswith("Error: The Ray cluster at '127.0.0.1:1' cannot be used (")


def _process(stage: object) -> int:
    return os.getpid()
