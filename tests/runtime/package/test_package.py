"""Packages are hostile until checked: every way a manifest or file can be wrong is one sentence."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reader_edge_runtime.errors import IntegrityError, ManifestError, PackageError
from reader_edge_runtime.package.manifest import MANIFEST_NAME, SUCCESSORS_NAME, file_entry
from reader_edge_runtime.package.manifest_file import read_manifest, write_manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.speculator_part import (
    SPECULATOR_GRAPH_NAME,
    SPECULATOR_WEIGHTS_NAME,
    SpeculatorPart,
)
from reader_edge_runtime.package.stage_part import StagePart
from tests.fake_target import make_manifest
from tests.runtime.package.onnx_bytes import external_tensor, function, message, model, node

Fields = dict[str, Any]

OWN = {name: {"num_bytes": 1, "sha256": "0" * 64} for name in (SPECULATOR_GRAPH_NAME, SPECULATOR_WEIGHTS_NAME)}
GRAPH = message(7, message(2, b"a graph of no nodes" * 20))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(GRAPH)
    (folder / "tokenizer.json").write_bytes(b"{}")
    files = {path.name: file_entry(path) for path in folder.iterdir()}
    write_manifest(folder, replace(make_manifest(), files=files))
    return folder


def edit(folder: Path, change: Callable[[Fields], object]) -> None:
    path = folder / MANIFEST_NAME
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


def test_written_manifest_is_read_back_equal(folder: Path) -> None:
    package = ModelPackage.open(folder)
    files = {name: file_entry(folder / name) for name in ("model.onnx", "tokenizer.json")}
    assert package.manifest == replace(make_manifest(), files=files)
    seen: list[tuple[int, int]] = []
    package.check_files(lambda done, total: seen.append((done, total)))
    assert not list(folder.glob("*.partial*"))
    assert seen[-1] == (len(GRAPH) + 2, len(GRAPH) + 2)


def test_a_table_of_successors_that_comes_later_leaves_the_package_the_same_to_who_knows_it(folder: Path) -> None:
    before = ModelPackage.open(folder)
    assert not before.manifest.is_tuned
    (folder / SUCCESSORS_NAME).write_bytes(b"a table")
    files = {**before.manifest.files, SUCCESSORS_NAME: file_entry(folder / SUCCESSORS_NAME)}
    write_manifest(folder, replace(before.manifest, files=files))
    after = ModelPackage.open(folder)
    assert after.manifest.is_tuned
    assert after.fingerprint() == before.fingerprint()
    files["tokenizer.json"] = files[SUCCESSORS_NAME]
    assert ModelPackage(folder, replace(after.manifest, files=files)).fingerprint() != before.fingerprint()


def test_packages_of_before_keep_no_types(folder: Path) -> None:
    edit(folder, lambda fields: fields.pop("kept_types"))
    assert ModelPackage.open(folder).manifest.kept_types == {}


def test_missing_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="No model package"):
        ModelPackage.open(tmp_path / "absent")
    with pytest.raises(ManifestError, match="holds no"):
        ModelPackage.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda f: f.update(format_version=5), "upgrade reader-edge"),
        (lambda f: f.update(format_version=0), "export it again"),
        (lambda f: f.update(format="other"), "not a reader-edge manifest"),
        (lambda f: f.update(num_layers=0), "num_layers"),
        (lambda f: f.update(num_layers=1 << 40), "num_layers"),
        (lambda f: f.update(num_layers=True), "num_layers"),
        (lambda f: f.update(head_dim="64"), "head_dim"),
        (lambda f: f.pop("vocab_size"), "vocab_size"),
        (lambda f: f.update(sliding_window=-1), "sliding_window"),
        (lambda f: f.update(precision="fp8"), "precision"),
        (lambda f: f.update(attention="magic"), "attention"),
        (lambda f: f.update(eos_token_ids=[1.5]), "eos_token_ids"),
        (lambda f: f.update(eos_token_ids=[0, 7], vocab_size=7), "token 7 as eos_token_ids, but a vocab_size of 7"),
        (lambda f: f.update(bos_token_id=9, vocab_size=7), "token 9 as bos_token_id, but a vocab_size of 7"),
        (lambda f: f.update(num_experts=0), "num_experts"),
        (lambda f: f.update(num_experts="8", num_experts_per_token=2), "num_experts"),
        (lambda f: f.update(num_experts=8, num_experts_per_token=9), "num_experts_per_token"),
        (lambda f: f.update(num_experts_per_token=2), "num_experts_per_token"),
        (lambda f: f.update(num_experts=8), "num_experts_per_token"),
        (lambda f: f.update(checks={"kl": "low"}), "checks"),
        (lambda f: f.update(checks={"kl": float("nan")}), "checks"),
        (lambda f: f.update(checks={"kl": float("inf")}), "checks"),
        (lambda f: f.update(checks={"kl": 10**400}), "checks"),
        (lambda f: f.update(checks={"kl": True}), "checks"),
        (lambda f: f.update(checks={"\ud800": 0.5}), "checks"),
        (lambda f: f.update(architecture="\ud800"), "architecture"),
        (lambda f: f.update(source_name="\x1b[2Jgone"), "source_name"),
        (lambda f: f.update(source_fingerprint="one\u2028two"), "source_fingerprint"),
        (lambda f: f.update(exported_with={"torch": "\udfff"}), "exported_with"),
        (lambda f: f.update(kept_types=["Q4_0"]), "kept_types"),
        (lambda f: f.update(kept_types={"Q4_0": -1}), "kept_types"),
        (lambda f: f.update(kept_types={"\x1b[2J": 1}), "kept_types"),
        (lambda f: f.update(exported_with={"\n": "1"}), "exported_with"),
        (lambda f: f.update(format_version=10**400), "upgrade reader-edge"),
        (lambda f: f.update(files=[]), "files"),
        (lambda f: f["files"].pop("tokenizer.json"), "lists no tokenizer.json"),
        (lambda f: f["files"]["model.onnx"].update(num_bytes=-1), "size of model.onnx"),
        (lambda f: f["files"]["model.onnx"].update(num_bytes=10**30), "size of model.onnx"),
        (lambda f: f["files"]["model.onnx"].update(sha256="zz"), "checksum of model.onnx"),
        (lambda f: f["files"].update({"../evil": {"num_bytes": 1, "sha256": "0" * 64}}), "not a plain file name"),
        (lambda f: f["files"].update({"/etc/passwd": {"num_bytes": 1, "sha256": "0" * 64}}), "not a plain file name"),
        (lambda f: f["files"].update({"a/b": {"num_bytes": 1, "sha256": "0" * 64}}), "not a plain file name"),
    ],
)
def test_unusable_manifest_is_one_sentence(folder: Path, change: Callable[[Fields], object], sentence: str) -> None:
    edit(folder, change)
    with pytest.raises(ManifestError, match=sentence) as caught:
        ModelPackage.open(folder)
    sentence = str(caught.value)
    assert sentence.isprintable()
    assert len(sentence) < 300 + len(str(folder))


PART = SpeculatorPart("eagle3", 1, 4, 2, 16, 48, 32, 4, (1, 0))
STAGE = StagePart(1, 2, 0, 2, 16, "0a" * 32)


def test_speculators_and_stages_are_read_back_equal(folder: Path) -> None:
    files = dict(ModelPackage.open(folder).manifest.files)
    for name in (SPECULATOR_GRAPH_NAME, SPECULATOR_WEIGHTS_NAME):
        (folder / name).write_bytes(GRAPH)
        files[name] = file_entry(folder / name)
    for changes in ({"state_ids": (0, 1), "hidden_size": 16, "speculator": PART}, {"stage": STAGE}):
        written = replace(make_manifest(), files=files, **changes)
        write_manifest(folder, written)
        assert read_manifest(folder) == written


@pytest.mark.parametrize(
    ("manifest", "change", "sentence"),
    [
        ({"stage": STAGE}, lambda f: f["stage"].update(number=2), "is a stage with an unusable first_layer: split"),
        ({"stage": STAGE}, lambda f: f.pop("stage"), "is a stage with an unusable stage: split the model again"),
        ({"state_ids": (0, 1)}, lambda f: f.update(state_ids=[1, 0]), "state_ids"),
        ({"state_ids": (0, 1)}, lambda f: f.update(state_ids=[0, 0]), "state_ids"),
        ({"state_ids": (0, 1)}, lambda f: f.update(state_ids=[3]), "state_ids"),
        ({"state_ids": (0, 1)}, lambda f: f.update(state_ids=None), "state_ids"),
        ({"state_ids": (0, 1)}, lambda f: f.update(attention="fast"), "state_ids"),
        ({"state_ids": (0, 1)}, lambda f: f.update(hidden_size=None), "state_ids"),
        ({"state_ids": (0, 1), "speculator": PART}, lambda f: None, "lists no speculator.onnx: export the model again"),
        ({"state_ids": (0, 1)}, lambda f: f.update(speculator="x", files=f["files"] | OWN), r"speculator \('x'\)"),
        (
            {"state_ids": (0, 1), "speculator": PART},
            lambda f: (f["files"].update(OWN), f["speculator"].update(top_k=0)),
            r"has a speculator with an unusable top_k \(0\): export the model again",
        ),
    ],
)
def test_unusable_speculators_and_stages_are_one_sentence(
    folder: Path, manifest: Fields, change: Callable[[Fields], object], sentence: str
) -> None:
    files = ModelPackage.open(folder).manifest.files
    write_manifest(folder, replace(make_manifest(), files=files, hidden_size=16, **manifest))
    edit(folder, change)
    with pytest.raises(ManifestError, match=sentence) as caught:
        read_manifest(folder)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"format": ' + b"[" * 100_000])
def test_manifest_that_is_no_json_object_is_refused(folder: Path, content: bytes) -> None:
    (folder / MANIFEST_NAME).write_bytes(content)
    with pytest.raises(ManifestError):
        ModelPackage.open(folder)


def test_huge_manifest_is_refused_before_it_is_read(folder: Path) -> None:
    (folder / MANIFEST_NAME).write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(ManifestError, match="1048577 bytes"):
        ModelPackage.open(folder)


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
