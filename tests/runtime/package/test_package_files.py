"""A package's files, pipeline.json and pipeline.key are hostile until checked: each fault is one sentence."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reader_edge_runtime.errors import IntegrityError, ManifestError, PackageError
from reader_edge_runtime.package import pipeline_file
from reader_edge_runtime.package.manifest import MANIFEST_NAME, file_entry
from reader_edge_runtime.package.manifest_file import write_manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.package_parts import MAX_STAGES
from reader_edge_runtime.package.pipeline_file import (
    KEY_NAME,
    PIPELINE_NAME,
    is_address,
    is_loopback,
    is_to_listen_at,
    new_key,
    read_key,
    read_pipeline,
    write_pipeline,
)
from tests.fake_target import make_manifest
from tests.runtime.package.onnx_bytes import GRAPH, external_tensor, function, message, model, node
from tests.wrong_fields import assert_each_is_named


def test_truncated_flipped_and_missing_files_are_named(folder: Path) -> None:
    package = ModelPackage.open(folder)
    graph = folder / "model.onnx"
    content = graph.read_bytes()
    graph.write_bytes(content[:-1])
    with pytest.raises(IntegrityError, match=rf"model\.onnx' has {len(GRAPH) - 1} bytes instead of {len(GRAPH)}"):
        package.check_files()
    graph.write_bytes(content[:250] + bytes([content[250] ^ 1]) + content[251:])
    with pytest.raises(IntegrityError, match="differs from its checksum"):
        package.check_files()
    graph.unlink()
    with pytest.raises(IntegrityError, match="missing"):
        package.check_files()


def hub_cached(folder: Path, tmp_path: Path) -> Path:
    """A package as the hub's cache keeps it: a folder of links to files that are named by their checksums."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123abcd"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(blobs / f"{number:064x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number:064x}")
    return snapshot


def test_a_package_in_the_hubs_cache_opens_and_is_checked(folder: Path, tmp_path: Path) -> None:
    snapshot = hub_cached(folder, tmp_path)
    ModelPackage.open(snapshot).check_files()
    link = tmp_path / "link"
    link.symlink_to(snapshot)
    ModelPackage.open(link).check_files()
    blob = (snapshot / "model.onnx").resolve()
    blob.write_bytes(b"\0" + blob.read_bytes()[1:])
    with pytest.raises(IntegrityError, match="differs from its checksum"):
        ModelPackage.open(snapshot).check_files()


@pytest.mark.parametrize(
    ("name", "error"),
    [("model.onnx", IntegrityError), ("tokenizer.json", IntegrityError), (MANIFEST_NAME, ManifestError)],
)
def test_a_pointer_of_git_lfs_is_named(folder: Path, name: str, error: type[Exception]) -> None:
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123456789\n")
    with pytest.raises(error, match=rf"{name}' is a pointer of git-lfs and not the file itself: .*`git lfs pull`\.$"):
        ModelPackage.open(folder).check_files()


def pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json", MANIFEST_NAME])
@pytest.mark.parametrize(
    ("replace_file", "words"),
    [
        (lambda path: path.symlink_to("nowhere"), "is a link to 'nowhere', where nothing is"),
        (lambda path: path.symlink_to(path.name), "is a link that leads back to itself"),
        (lambda path: path.symlink_to(os.devnull), "is a link to a device, not to a file"),
        (lambda path: path.symlink_to(path.parent), "is a link to a folder, not to a file"),
        (lambda path: path.mkdir(), "is a folder, not a file"),
        (pipe, "is a pipe, not a file"),
    ],
)
def test_what_is_no_plain_file_is_refused_before_it_is_opened(
    folder: Path, name: str, replace_file: Callable[[Path], object], words: str
) -> None:
    (folder / name).unlink()
    replace_file(folder / name)
    with pytest.raises((IntegrityError, ManifestError), match=f"{re.escape(words)}: export or copy") as caught:
        ModelPackage.open(folder).check_files()
    assert str(caught.value).isprintable()


def test_unlisted_file_has_no_path(folder: Path) -> None:
    with pytest.raises(PackageError, match=r"lists no chat_template\.jinja"):
        ModelPackage.open(folder).path("chat_template.jinja")


def replace_graph(folder: Path, name: str, content: bytes) -> ModelPackage:
    """Put another graph in, with a manifest that vouches for it."""
    (folder / name).write_bytes(content)
    files = {path.name: file_entry(path) for path in folder.iterdir() if path.name != MANIFEST_NAME}
    write_manifest(folder, replace(make_manifest(), files=files))
    return ModelPackage.open(folder)


@pytest.mark.parametrize("name", ["model.onnx", "commit.onnx"])
@pytest.mark.parametrize("location", ["model.onnx.data", "other", "sub/weights", "../weights", "/etc/passwd", "", "\0"])
def test_graph_that_reads_an_unlisted_file_is_refused(folder: Path, name: str, location: str) -> None:
    package = replace_graph(folder, name, model(tensors=[external_tensor(location)]))
    with pytest.raises(PackageError, match=f"{name}' reads .*manifest does not list") as caught:
        package.check_files()
    assert str(caught.value).isprintable()


def test_weights_are_listed_checked_and_beside_the_graph(folder: Path, tmp_path: Path) -> None:
    (folder / "model.onnx.data").write_bytes(b"weights")
    package = replace_graph(folder, "model.onnx", model(tensors=[external_tensor("model.onnx.data")]))
    package.check_files()
    (folder / "model.onnx.data").write_bytes(b"weighty")
    with pytest.raises(IntegrityError, match="differs from its checksum"):
        package.check_files()
    (folder / "model.onnx.data").write_bytes(b"weights")
    package = replace_graph(folder, "model.onnx", model(tensors=[external_tensor("model.onnx.data")]))
    (folder / "model.onnx.data").rename(tmp_path / "far")
    (folder / "model.onnx.data").symlink_to(tmp_path / "far")
    with pytest.raises(PackageError, match="in another folder than the graph that reads it: copy the package"):
        package.check_files()


@pytest.mark.parametrize(
    "graph",
    [
        model(node("Loop", attribute=message(6, b""))),
        model(node("BeamSearch", "com.microsoft", attribute=message(11, b""))),
        model(node("EPContext", "com.microsoft")),
        model(node("F", "own"), functions=[function("F", node("F", "own"))]),
        model(node("F6", "own"), functions=[function(f"F{i}", *[node(f"F{i - 1}", "own")] * 10) for i in range(1, 7)]),
    ],
    ids=["loop", "graphs of graphs", "compiled", "recursion", "a million nodes in six functions"],
)
def test_graph_that_may_never_end_is_refused(folder: Path, graph: bytes) -> None:
    package = replace_graph(folder, "model.onnx", graph)
    with pytest.raises(PackageError, match="which no exported model has"):
        package.check_files()


ADDRESSES = ["tcp://10.0.0.2:5551", "tcp://[fe80::1]:5551", "tcp://box-3.local:65535"]
FIELDS = {"format": "reader-edge pipeline", "format_version": 1, "stages": ADDRESSES}


def test_a_stage_may_have_spare_boxes_which_no_other_has(tmp_path: Path) -> None:
    write_pipeline(tmp_path, ["tcp://a:1 tcp://b:1", "tcp://c:1"])
    assert read_pipeline(tmp_path) == ("tcp://a:1 tcp://b:1", "tcp://c:1")
    with pytest.raises(PackageError, match="two stages at one address"):
        write_pipeline(tmp_path, ["tcp://a:1 tcp://c:1", "tcp://c:1"])
    with pytest.raises(PackageError, match="has 9 spare addresses, but may have 8"):
        write_pipeline(tmp_path, [" ".join(f"tcp://a:{port}" for port in range(1, 11))])
    for wrong in ("", "tcp://a:1  tcp://b:1", "tcp://a:1,tcp://b:1"):
        with pytest.raises(PackageError, match="is no address of a stage"):
            write_pipeline(tmp_path, [wrong])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{" + b" " * (1 << 16), "more than the 65536 bytes that it may have"),
        (b"{", "is not valid JSON"),
        (b"[]", "is unusable"),
        ({"format": "reader-edge package"}, r"has an unusable format \('reader-edge package'\)"),
        ({"format_version": 2}, r"has an unusable format_version \(2\)"),
        ({"stages": []}, "has an unusable stages"),
        ({"stages": [f"tcp://a:{1 + n}" for n in range(MAX_STAGES)]}, "has an unusable stages"),
        ({"stages": ["ipc:///tmp/socket"]}, "has unusable stages"),
        ({"stages": ["tcp://a:65536"]}, "has unusable stages"),
        ({"stages": ["tcp://*:5551"]}, "has unusable stages"),
        ({"stages": [" ".join(f"tcp://a:{port}" for port in range(1, 2002))]}, "has 2000 spare addresses"),
        ({"stages": ["tcp://a:1", "tcp://b:1", "tcp://a:1"]}, "has two stages at one address"),
    ],
)
def test_another_file_is_refused(content: bytes | dict[str, object], sentence: str, tmp_path: Path) -> None:
    data = content if isinstance(content, bytes) else json.dumps(FIELDS | content).encode()
    (tmp_path / PIPELINE_NAME).write_bytes(data)
    with pytest.raises(PackageError, match=sentence):
        read_pipeline(tmp_path)


def test_addresses_come_back_in_order_and_others_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"'tcp://a' is no address of a stage: give tcp://HOST:PORT"):
        write_pipeline(tmp_path, ["tcp://b:1", "tcp://a"])
    assert not list(tmp_path.iterdir())
    write_pipeline(tmp_path, ADDRESSES)
    assert read_pipeline(tmp_path) == tuple(ADDRESSES)
    assert_each_is_named(pipeline_file._PipelineFile, FIELDS)


def test_what_only_this_machine_reaches_is_known_from_the_rest() -> None:
    assert all(map(is_to_listen_at, ["tcp://*:5551", "tcp://10.0.0.2:5551"]))
    assert not any(map(is_to_listen_at, ["tcp://*", "tcp://**:1", "*", 5]))
    alone = ["tcp://127.0.0.1:1", "tcp://localhost:5551", "tcp://[::1]:1"]
    assert all(is_address(each) and is_loopback(each) for each in alone)
    assert not any(map(is_loopback, ["tcp://*:1", "tcp://0.0.0.0:1", "tcp://127.0.0.1.example.org:1", *ADDRESSES]))


def test_keys_are_fresh_and_their_owners_alone(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        new_key(tmp_path / name)
    first, second = (read_key(tmp_path / name / KEY_NAME) for name in "ab")
    assert len(first) == len(second) == 32
    assert first != second
    assert (tmp_path / "a" / KEY_NAME).stat().st_mode & 0o777 == 0o600
    new_key(tmp_path)
    (tmp_path / KEY_NAME).chmod(0o640)
    with pytest.raises(PackageError, match="may be read by others: `chmod 600` it"):
        read_key(tmp_path / KEY_NAME)


@pytest.mark.parametrize("content", [b"", b"0" * 63, b"G" * 64, b"0" * 64 + b" " * 65], ids=len)
def test_another_key_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / KEY_NAME).write_bytes(content)
    (tmp_path / KEY_NAME).chmod(0o600)
    with pytest.raises(PackageError, match=r"is no key of a pipeline: give the pipeline\.key"):
        read_key(tmp_path / KEY_NAME)
