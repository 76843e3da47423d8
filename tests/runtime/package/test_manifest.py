"""A manifest, layer by layer, is hostile until checked: every way it can be wrong is one sentence."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from reader_edge_runtime.errors import ManifestError, PackageError
from reader_edge_runtime.package.images import ImageRules
from reader_edge_runtime.package.layer import Layer
from reader_edge_runtime.package.manifest import MANIFEST_NAME, SUCCESSORS_NAME, Manifest, file_entry
from reader_edge_runtime.package.manifest_file import read_manifest, write_manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.package_parts import (
    SPECULATOR_GRAPH_NAME,
    SPECULATOR_WEIGHTS_NAME,
    VISION_GRAPH_NAME,
    VISION_WEIGHTS_NAME,
    BlockPart,
    ImagesPart,
    LentPart,
    SpeculatorPart,
    StagePart,
)
from tests.fake_target import make_manifest
from tests.runtime.package.onnx_bytes import GRAPH
from tests.wrong_fields import assert_each_is_named

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


def test_missing_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="No model package"):
        ModelPackage.open(tmp_path / "absent")
    with pytest.raises(ManifestError, match="holds no"):
        ModelPackage.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda f: f.update(format_version=7), "upgrade reader-edge"),
        (lambda f: f.update(format_version=5), "has format version 5, this runtime reads 6: export it again"),
        (lambda f: f.update(format_version=True), "export it again"),
        (lambda f: f.update(format_version=10**400), "upgrade reader-edge"),
        (lambda f: f.update(format="other"), "not a reader-edge manifest"),
        (lambda f: f.update(num_layers=0), r"num_layers \(0; expected int >= 1\): export the model again"),
        (lambda f: f.update(eos_token_ids=[0, 7], vocab_size=7), r"token of eos_token_ids \(7\)"),
        (lambda f: f.update(bos_token_id=9, vocab_size=7), r"token of bos_token_id \(9\)"),
        (lambda f: f.update(num_experts=8, num_experts_per_token=9), "num_experts_per_token"),
        (lambda f: f.update(num_experts_per_token=2), "num_experts_per_token"),
        (lambda f: f.update(num_experts=8), "num_experts_per_token"),
        (lambda f: f.update(checks={"kl": float("nan")}), "not valid JSON"),
        (lambda f: f.update(checks={"\ud800": 0.5}), "not valid JSON"),
        (lambda f: f.update(source_fingerprint="one\u2028two"), "source_fingerprint"),
        (lambda f: f.update(exported_with={"\n": "1"}), r"name in exported_with \('\\n'\)"),
        (lambda f: f["files"].pop("tokenizer.json"), "lists no tokenizer.json"),
        (lambda f: f["files"].update({"../evil": OWN[SPECULATOR_GRAPH_NAME]}), "unusable name in files"),
        (lambda f: f["files"].update({"/etc/passwd": OWN[SPECULATOR_GRAPH_NAME]}), "unusable name in files"),
        (lambda f: f["files"].update({"a/b": OWN[SPECULATOR_GRAPH_NAME]}), r"name in files \('a/b'\)"),
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
DRAFTING = {"state_ids": (0, 1), "speculator": replace(PART, format="dflash", block=BlockPart(6, 31, True, True))}
BORROWER = replace(PART, format="assistant", num_layers=0, lent=LentPart((0,), 5))
LENT = {"state_ids": (0, 1), "speculator": BORROWER}
RULES = ImageRules("gemma3", 14, 4, "bilinear", (0.5,) * 3, (0.5,) * 3, tile_size=896)
IMAGES = ImagesPart(5, 16, RULES, 1, "sliding")
STAGE = StagePart(1, 2, 0, 2, 16, "0a" * 32)


RIGHT = replace(
    make_manifest(eos_token_ids=(0,)),
    sliding_window=4,
    bos_token_id=0,
    exported_with={"torch": "2"},
    checks={"kl": 0.5},
    kept_types={"Q4_0": 1},
    hidden_size=16,
    special_tokens={"bos_token": "\n"},
    num_experts=4,
    num_experts_per_token=2,
    layers=(Layer.recurrent({"conv": (3, 40)}, {"conv": 40}), Layer.attention(2, 16, shares=1)),
    state_ids=(0, 1),
    speculator=PART,
    images=IMAGES,
    stage=STAGE,
    sampling={"top_p": 0.5},
)


def test_every_wrong_field_is_named_and_a_stage_knows_whether_it_is_an_end() -> None:
    assert_each_is_named(Manifest, json.loads(json.dumps(to_builtins(RIGHT))))
    stages = [replace(STAGE, number=number, num_stages=3) for number in (1, 2, 3)]
    assert [(each.is_first, each.is_last) for each in stages] == [(True, False), (False, False), (False, True)]


def test_speculators_images_and_stages_are_read_back_equal(folder: Path) -> None:
    files = dict(ModelPackage.open(folder).manifest.files)
    for name in (SPECULATOR_GRAPH_NAME, SPECULATOR_WEIGHTS_NAME, VISION_GRAPH_NAME, VISION_WEIGHTS_NAME):
        (folder / name).write_bytes(GRAPH)
        files[name] = file_entry(folder / name)
    own: dict[str, Any] = {"state_ids": (0, 1), "hidden_size": 16, "speculator": PART}
    for changes in (own, own | DRAFTING, own | LENT, {"hidden_size": 16, "images": IMAGES}, {"stage": STAGE}):
        written = replace(make_manifest(), files=files, **changes)
        write_manifest(folder, written)
        assert read_manifest(folder) == written


@pytest.mark.parametrize(
    ("manifest", "change", "sentence"),
    [
        ({"stage": STAGE}, lambda f: f["stage"].update(number=2), r"unusable stage.first_layer \(.*: split the model"),
        ({"stage": STAGE}, lambda f: f["stage"].update(number=2, num_stages=3, first_layer=0), "stage.first_layer"),
        ({"stage": STAGE}, lambda f: f["stage"].update(number=3), "stage.number"),
        ({"stage": STAGE}, lambda f: f["stage"].update(num_model_layers=1), "stage.num_model_layers"),
        ({"stage": STAGE}, lambda f: f.update(num_layers=3), "stage.first_layer"),
        ({"state_ids": (0, 1)}, lambda f: f.update(state_ids=[1, 0]), "state_ids"),
        ({"state_ids": (0, 1)}, lambda f: f.update(state_ids=[0, 0]), "state_ids"),
        ({"state_ids": (0, 1)}, lambda f: f.update(state_ids=[3]), "state_ids"),
        ({"state_ids": (0, 1)}, lambda f: f.update(state_ids=[-1]), "state_ids"),
        ({"state_ids": (0, 1)}, lambda f: f.update(attention="fast"), "state_ids"),
        ({"state_ids": (0, 1)}, lambda f: f.update(hidden_size=None), "state_ids"),
        ({"state_ids": (0, 1), "speculator": PART}, lambda f: None, "lists no speculator.onnx: export the model again"),
        ({"state_ids": (0, 2), "speculator": PART}, lambda f: None, r"unusable speculator.state_ids \(\(1, 0\)\)"),
        (DRAFTING, lambda f: f["speculator"].pop("block"), "unusable speculator.block"),
        (DRAFTING, lambda f: f["speculator"].update(num_layers=0), "unusable speculator.block"),
        (DRAFTING, lambda f: f["speculator"].update(format="mtp"), "unusable speculator.block"),
        (DRAFTING, lambda f: f["speculator"]["block"].update(size=1), "speculator.block.size"),
        (LENT, lambda f: f["speculator"].pop("lent"), "unusable speculator.lent"),
        (LENT, lambda f: f["speculator"].update(num_layers=1), "unusable speculator.lent"),
        (LENT, lambda f: f["speculator"].update(format="mtp"), "unusable speculator.lent"),
        (LENT, lambda f: f["speculator"]["lent"].update(layers=[0, 1]), "unusable speculator.lent"),
        (LENT, lambda f: f["speculator"]["lent"].update(layers=[0, 0]), "unusable speculator.lent"),
        (LENT, lambda f: f["speculator"]["lent"].update(window=0), "speculator.lent.window"),
        ({"images": IMAGES}, lambda f: None, "lists no vision.onnx: export the model again"),
        ({"images": IMAGES}, lambda f: f["images"].update(width=8), r"unusable images.width \(8\)"),
        ({"images": IMAGES}, lambda f: f["images"].update(num_deepstack=9), "unusable images.num_deepstack"),
        ({"images": IMAGES}, lambda f: f["images"].update(token_id=1 << 23), "unusable images.token_id"),
        ({"images": IMAGES}, lambda f: f["images"].update(position_axes=2), "unusable images.position_axes"),
        ({"images": IMAGES}, lambda f: f["images"].update(position_axes=3), "unusable images.position_axes"),
        ({"images": IMAGES}, lambda f: f["images"].update(sees_whole_image="some"), "images.sees_whole_image"),
        ({"images": IMAGES}, lambda f: f.update(attention="fast"), "unusable images"),
    ],
)
def test_unusable_speculators_images_and_stages_are_one_sentence(
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
    with pytest.raises(ManifestError, match="more than the 1048576 bytes"):
        ModelPackage.open(folder)


LAYERS = (
    Layer.recurrent({"conv": (3, 40), "delta": (4, 8, 8)}, {"conv": 40, "delta": 56}),
    Layer.attention(2, 16),
    Layer.none(),
    Layer.attention(1, 32),
    Layer.attention(2, 16, shares=1),
    Layer.attention(1, 24, is_latent=True),
    Layer.attention(2, 16).with_states({"conv": (3, 40)}, {"conv": 40}),
)


def layered() -> Manifest:
    return replace(make_manifest(), num_layers=len(LAYERS), layers=LAYERS)


def test_layers_are_read_back_equal_and_listed_where_they_differ(tmp_path: Path) -> None:
    write_manifest(tmp_path, layered())
    assert read_manifest(tmp_path) == layered()
    write_manifest(tmp_path, make_manifest())
    assert "layers" not in json.loads((tmp_path / MANIFEST_NAME).read_text())
    assert read_manifest(tmp_path) == make_manifest()
    write_manifest(tmp_path, replace(layered(), num_layers=8))
    with pytest.raises(ManifestError, match=r"number of layers beside num_layers 8 \(7\): export the model again"):
        read_manifest(tmp_path)


def test_tensors_and_memory_are_those_of_the_layers() -> None:
    manifest = layered()
    names = ["past_key.1", "past_value.1", "past_key.3", "past_value.3", "past_key.5", "past_key.6", "past_value.6"]
    assert manifest.past_names() == names
    assert manifest.present_names() == [name.replace("past", "present") for name in manifest.past_names()]
    assert manifest.state_sizes() == {"conv.0": (3, 40), "delta.0": (4, 8, 8), "conv.6": (3, 40)}
    assert manifest.capsule_sizes() == {"conv.0": 40, "delta.0": 56, "conv.6": 40}
    assert manifest.has_states
    assert not make_manifest().has_states
    manifest = layered()
    assert manifest.kv_row_bytes == 2 * 4 * (2 * 16 + 1 * 32 + 2 * 16) + 4 * 24
    assert replace(manifest, kv_dtype="int8").kv_row_bytes == 2 * (2 * 18 + 1 * 34 + 2 * 18) + 26
    assert manifest.state_bytes == 4 * (2 * 3 * 40 + 4 * 8 * 8)
    assert make_manifest().state_bytes == 0


def set_layer(number: int, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["layers"][number].update(fields)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_layer(0, is_latent=True), r"layers\[0\] .*sizes and cache are those of attention"),
        (set_layer(4, is_latent=True), r"layers\[4\].cache \(1\)"),
        (set_layer(0, states={}), r"layers\[0\] .*states and capsules"),
        (set_layer(0, states={"conv": [3, 40]}), r"layers\[0\] .*states and capsules"),
        (set_layer(0, states={"conv": [3, 40], "delta": [1 << 15, 1 << 15]}), r"layers\[0\] .*numbers at most"),
        (set_layer(0, states={"../a": [3]}, capsules={"../a": 3}), r"name in layers\[0\].capsules \('../a'\)"),
        (set_layer(0, states={f"s{n}": [1] for n in range(9)}), r"layers\[0\].states"),
        (set_layer(1, states={"conv": [3]}, capsules={"conv": 3}), r"layers\[1\]"),
        (set_layer(2, cache="own"), r"layers\[2\]"),
        (set_layer(6, states={}, capsules={}), r"layers\[6\] .*states and capsules"),
        (set_layer(6, cache=None), r"layers\[6\] .*sizes and cache"),
        (set_layer(4, cache=4), r"layers\[4\].cache \(4\)"),
        (set_layer(4, cache=0), r"layers\[4\].cache \(0\)"),
        (set_layer(4, cache=3), r"layers\[4\].cache"),  # of another size
        (set_layer(3, cache=4), r"layers\[3\].cache"),  # which comes behind it
    ],
)
def test_unusable_layers_are_named(change: Callable[[dict[str, Any]], object], words: str, tmp_path: Path) -> None:
    write_manifest(tmp_path, layered())
    fields = json.loads((tmp_path / MANIFEST_NAME).read_text())
    change(fields)
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(fields))
    with pytest.raises(ManifestError, match=f"an unusable {words}") as caught:
        read_manifest(tmp_path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300 + len(str(tmp_path))
