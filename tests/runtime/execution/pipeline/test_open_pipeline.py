"""A pipeline is opened as any package, a stage served by one call; what is missing for that is one sentence."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path

import pytest

from reader_edge_runtime import EngineConfig
from reader_edge_runtime.errors import ConfigError, InstallationError, PackageError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.pipeline.open_pipeline import open_pipeline, serve_stage
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.pipeline_file import KEY_NAME, new_key, write_pipeline
from tests.stages_here import assert_same_rows, free_address

Split = Callable[[int], Path]
CONFIG = EngineConfig(threads=1)


@contextmanager
def served(stage: Path, address: str, key: Path | None) -> Iterator[list[str]]:
    """A stage in a thread; the lines that it tells."""
    lines: list[str] = []
    is_over, listens = threading.Event(), threading.Event()

    def tell(line: str) -> None:
        lines.append(line)
        listens.set()

    thread = threading.Thread(
        target=serve_stage, args=(ModelPackage.open(stage), address, key, CONFIG, tell, is_over.is_set)
    )
    thread.start()
    try:
        assert listens.wait(30)
        yield lines
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("is_key_named", [True, False])
def test_a_pipeline_with_its_key_has_the_rows_of_the_whole_model(
    split_demo: Split, demo_folder: Path, tmp_path: Path, is_key_named: bool
) -> None:
    """Unless it is named, the key is the one beside the stage."""
    pytest.importorskip("zmq", reason="the extra 'pipeline' is not installed")
    address = free_address()
    for name in ("1", "2"):
        (tmp_path / name).symlink_to(split_demo(2) / name)
    write_pipeline(tmp_path, [address])
    new_key(tmp_path)
    with served(tmp_path / "1", address, tmp_path / KEY_NAME if is_key_named else None) as lines:
        piped = open_pipeline(ModelPackage.open(tmp_path), CONFIG)
        assert_same_rows(HostTarget.open(ModelPackage.open(demo_folder), 1), piped, 3)
        assert lines[0] == f"Stage 1 of 2 listens at {address}."
        assert lines[1].startswith("Serves ")
        assert lines[1].endswith("; hands on to the client.")


@pytest.mark.parametrize(
    ("name", "address", "error", "sentence"),
    [
        ("2", "tcp://127.0.0.1:5551", PackageError, "is the last stage, which the client runs: serve the others"),
        (".", "tcp://127.0.0.1:5551", PackageError, "holds all stages: give one, as '.*/1'"),
        ("1", "5551", ConfigError, "'5551' is no address to listen at: give tcp://HOST:PORT"),
    ],
)
def test_no_stage_is_refused(name: str, address: str, error: type[Exception], sentence: str, split_demo: Split) -> None:
    pytest.importorskip("zmq", reason="the extra 'pipeline' is not installed")
    with pytest.raises(error, match=sentence):
        serve_stage(ModelPackage.open(split_demo(2) / name), address, None, CONFIG, print)


def test_without_pyzmq_its_extra_is_named(split_demo: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(InstallationError, match=r"needs pyzmq, .* pip install 'reader-edge\[pipeline\]'"):
        open_pipeline(ModelPackage.open(split_demo(2)), CONFIG)
