"""What a manifest tells of each layer: written and read back, named for the graph, and hostile until checked."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reader_edge_runtime.errors import ManifestError
from reader_edge_runtime.package.layer import Layer
from reader_edge_runtime.package.manifest import MANIFEST_NAME, Manifest
from reader_edge_runtime.package.manifest_file import read_manifest, write_manifest
from tests.fake_target import make_manifest

LAYERS = (
    Layer.recurrent({"conv": (3, 40), "delta": (4, 8, 8)}, {"conv": 40, "delta": 56}),
    Layer.attention(2, 16),
    Layer.none(),
    Layer.attention(1, 32),
    Layer.attention(2, 16, shares=1),
)


def layered() -> Manifest:
    return replace(make_manifest(), num_layers=len(LAYERS), layers=LAYERS)


def test_layers_are_read_back_equal(tmp_path: Path) -> None:
    write_manifest(tmp_path, layered())
    assert read_manifest(tmp_path) == layered()


def test_layers_that_are_alike_are_not_listed(tmp_path: Path) -> None:
    write_manifest(tmp_path, make_manifest())
    assert "layers" not in json.loads((tmp_path / MANIFEST_NAME).read_text())
    assert read_manifest(tmp_path) == make_manifest()


def test_tensors_are_named_by_the_layers_that_have_them() -> None:
    manifest = layered()
    assert manifest.past_names() == ["past_key.1", "past_value.1", "past_key.3", "past_value.3"]
    assert manifest.present_names() == ["present_key.1", "present_value.1", "present_key.3", "present_value.3"]
    assert manifest.state_sizes() == {"conv.0": (3, 40), "delta.0": (4, 8, 8)}
    assert manifest.capsule_sizes() == {"conv.0": 40, "delta.0": 56}
    assert manifest.has_states
    assert not make_manifest().has_states


def test_memory_of_a_token_and_of_a_text_is_that_of_its_layers() -> None:
    manifest = layered()
    assert manifest.kv_row_bytes == 2 * 4 * (2 * 16 + 1 * 32)
    assert replace(manifest, kv_dtype="int8").kv_row_bytes == 2 * (2 * 18 + 1 * 34)
    assert manifest.state_bytes == 4 * (3 * 40 + 4 * 8 * 8)
    assert make_manifest().state_bytes == 0


def test_a_list_of_another_length_is_told_with_both_numbers(tmp_path: Path) -> None:
    write_manifest(tmp_path, replace(layered(), num_layers=7))
    with pytest.raises(ManifestError, match=r"number of layers beside num_layers 7 \(5\): export the model again"):
        read_manifest(tmp_path)


def set_layer(number: int, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["layers"][number].update(fields)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.update(layers=[None] * 5), r"layers\[0\]"),
        (set_layer(0, kind="magic"), r"layers\[0\].kind \('magic'"),
        (set_layer(0, states={}), r"layers\[0\] .*states and capsules"),
        (set_layer(0, states={"conv": [3, 40]}), r"layers\[0\] .*states and capsules"),
        (set_layer(0, states={"conv": [3, 40], "delta": [0, 8, 8]}), r"layers\[0\].states\['delta'\]\[0\] \(0;"),
        (set_layer(0, states={"conv": [3, 40], "delta": [1 << 15, 1 << 15]}), r"layers\[0\] .*numbers at most"),
        (set_layer(0, states={"conv": [3, 40], "delta": []}), r"layers\[0\].states\['delta'\] \(\[\];"),
        (set_layer(0, states={"../a": [3]}, capsules={"../a": 3}), r"name in layers\[0\].capsules \('../a'\)"),
        (set_layer(0, states={f"s{n}": [1] for n in range(9)}), r"layers\[0\].states"),
        (set_layer(0, more=1), r"name in layers\[0\] \('more'; there is no such field"),
        (set_layer(1, num_kv_heads=0), r"layers\[1\]"),
        (set_layer(1, states={"conv": [3]}, capsules={"conv": 3}), r"layers\[1\]"),
        (set_layer(1, cache=None), r"layers\[1\]"),
        (set_layer(2, cache="own"), r"layers\[2\]"),
        (set_layer(4, cache=4), r"layers\[4\].cache \(4\)"),
        (set_layer(4, cache=0), r"layers\[4\].cache \(0\)"),
        (set_layer(4, cache=3), r"layers\[4\].cache"),  # of another size
        (set_layer(3, cache=4), r"layers\[3\].cache"),  # which comes behind it
    ],
)
def test_unusable_layers_are_one_sentence(
    change: Callable[[dict[str, Any]], object], words: str, tmp_path: Path
) -> None:
    write_manifest(tmp_path, layered())
    fields = json.loads((tmp_path / MANIFEST_NAME).read_text())
    change(fields)
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(fields))
    with pytest.raises(ManifestError, match=f"an unusable {words}") as caught:
        read_manifest(tmp_path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300 + len(str(tmp_path))
