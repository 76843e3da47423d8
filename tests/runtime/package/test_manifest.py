"""A manifest is hostile until checked: every way it can be wrong is one sentence."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reader_edge_runtime.errors import ManifestError, PackageError
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
from tests.runtime.package.onnx_bytes import GRAPH

Fields = dict[str, Any]

OWN = {name: {"num_bytes": 1, "sha256": "0" * 64} for name in (SPECULATOR_GRAPH_NAME, SPECULATOR_WEIGHTS_NAME)}


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
