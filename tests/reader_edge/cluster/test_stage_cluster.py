"""`reader-edge stage --ray`: a cluster's nodes serve the stages of a pipeline, and again where one was killed."""

import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from tests.stages_here import assert_same_rows

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'reader-edge[ray]'")
pytest.importorskip("zmq", reason="the extra 'pipeline' is not installed")

from reader_edge.cluster import placed_stage, stage_cluster  # noqa: E402 (needs the extra)
from reader_edge.cluster.placed_stage import PlacedStage  # noqa: E402
from reader_edge.cluster.stage_cluster import StageCluster  # noqa: E402

CONFIG = EngineConfig(threads=1)


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


class Told:
    """Lines that come from other threads."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._has_more = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._has_more:
            self.lines.append(line)
            self._has_more.notify_all()

    def wait_for(self, words: str, count: int) -> None:
        with self._has_more:
            assert self._has_more.wait_for(lambda: sum(words in line for line in self.lines) >= count, 60), self.lines


@contextmanager
def serving(stages: StageCluster) -> Iterator[None]:
    is_over = threading.Event()
    thread = threading.Thread(target=stages.serve, args=(is_over.is_set,))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_a_cluster_serves_the_stages_and_again_after_a_kill(cluster: Any, pipeline: Path, demo_folder: Path) -> None:
    told, whole = Told(), HostTarget.open(ModelPackage.open(demo_folder), 1)
    with StageCluster(pipeline, cluster.address, CONFIG, told) as stages:
        assert list(read_pipeline(pipeline)) == stages.addresses
        nodes = ray.get([each.__ray_call__.remote(_node) for each in stages.stages])
        assert len(set(nodes)) == 2
        with serving(stages):
            told.wait_for(" of 3 listens at tcp://", 2)
            piped = open_pipeline(ModelPackage.open(pipeline), CONFIG)
            assert_same_rows(whole, piped, 3)
            os.kill(ray.get(stages.stages[0].__ray_call__.remote(_process)), signal.SIGKILL)
            with pytest.warns(RuntimeWarning, match="Stage 1 at .* is gone"):
                assert_same_rows(whole, piped, 3, seed=1)
            told.wait_for("Stage 1 of 3 listens at tcp://", 2)
        assert ray.get([each.__ray_call__.remote(_node) for each in stages.stages]) == nodes


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


def test_a_node_that_has_not_the_stage_is_one_sentence(cluster: Any, pipeline: Path) -> None:
    with StageCluster(pipeline, cluster.address, CONFIG, print) as stages:
        shutil.rmtree(pipeline / "2")
        with pytest.raises(
            ClusterError, match=rf"^Stage 2 cannot be served at {stages.addresses[1]}: .*'{pipeline}/2'"
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

    monkeypatch.setattr(stage_cluster, "StageCluster", Cluster)
    done = runner.invoke(main, ["stage", str(pipeline), "--ray", "10.0.0.1:6379"])
    assert (done.exit_code, served) == (0, [pipeline, "10.0.0.1:6379", "served"]), done.stderr


def test_a_cluster_that_is_not_there_is_one_sentence(pipeline: Path, runner: CliRunner) -> None:
    told = runner.invoke(main, ["stage", str(pipeline), "--ray", "127.0.0.1:1"])
    assert (told.exit_code, told.stderr.count("\n")) == (1, 1)
    assert told.stderr.startswith("Error: The Ray cluster at '127.0.0.1:1' cannot be used (")


def _node(stage: object) -> str:
    return str(ray.get_runtime_context().get_node_id())


def _process(stage: object) -> int:
    return os.getpid()
