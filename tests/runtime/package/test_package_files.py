"""A package's files are hostile until checked: every way one can be wrong is one sentence."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reader_edge_runtime.errors import IntegrityError, ManifestError, PackageError
from reader_edge_runtime.package.manifest import MANIFEST_NAME, file_entry
from reader_edge_runtime.package.manifest_file import write_manifest
from reader_edge_runtime.package.model_package import ModelPackage
from tests.fake_target import make_manifest
from tests.runtime.package.onnx_bytes import GRAPH, external_tensor, function, message, model, node


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
def test_a_pointer_of_git_lfs_is_told_with_the_command_that_fetches_the_file(
    folder: Path, name: str, error: type[Exception]
) -> None:
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


def test_weights_that_are_linked_from_far_away_are_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "model.onnx.data").write_bytes(b"weights")
    package = replace_graph(folder, "model.onnx", model(tensors=[external_tensor("model.onnx.data")]))
    (folder / "model.onnx.data").rename(tmp_path / "far")
    (folder / "model.onnx.data").symlink_to(tmp_path / "far")
    with pytest.raises(PackageError, match="in another folder than the graph that reads it: copy the package"):
        package.check_files()


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


def test_weights_that_the_manifest_lists_are_checked(folder: Path) -> None:
    (folder / "model.onnx.data").write_bytes(b"weights")
    package = replace_graph(folder, "model.onnx", model(tensors=[external_tensor("model.onnx.data")]))
    package.check_files()
    (folder / "model.onnx.data").write_bytes(b"weighty")
    with pytest.raises(IntegrityError, match="differs from its checksum"):
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
