"""A package's eyes: what comes along with which options, and what is refused before weights are read."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.images.image_check import drawn_picture
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.image_part import find_images
from reader_edge_export.split.split_package import split_package
from reader_edge_runtime.errors import ConfigError, ReaderEdgeError
from reader_edge_runtime.execution.onnxruntime.host.host_vision import HostVision
from reader_edge_runtime.images.patches import prepare
from reader_edge_runtime.package.manifest import GRAPH_NAME, Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.package_parts import VISION_GRAPH_NAME
from tests.export.images.seeing_models import EYES, IMAGE_ID, build_seeing_model
from tests.export.sources.quantized.test_float_formats import WRITERS, quantize
from tests.small_disk import small_disk
from tests.tiny_models import change_config


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return build_seeing_model("qwen3_5", tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def qwens(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Not to be changed."""
    others = {name: build_seeing_model(name, tmp_path_factory.mktemp(name)) for name in ("qwen3_vl", "qwen2_5_vl")}
    return {"qwen3_5": model, **others}


@pytest.fixture
def spoilt(model: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(model, tmp_path / "spoilt"))


def exported(folder: Path, out: Path, options: ExportOptions) -> tuple[Manifest, tuple[str, ...]]:
    """The manifest, and the modules that were left out."""
    report = export_model(folder, out, options)
    ModelPackage.open(out).check_files()
    return ModelPackage.open(out).manifest, report.left_out


@pytest.mark.long
def test_eyes_come_along_unless_they_are_not_wanted(model: Path, tmp_path: Path) -> None:
    seeing, left_out = exported(model, tmp_path / "seeing", ExportOptions("int8", check="none"))
    assert seeing.images is not None
    assert (seeing.images.token_id, seeing.images.width, seeing.images.position_axes) == (IMAGE_ID, 64, 3)
    assert (seeing.images.rules.family, seeing.images.rules.max_pixels) == ("qwen3_5", 4096)
    assert left_out == ()
    plain, left_out = exported(model, tmp_path / "plain", ExportOptions("int8", check="none", has_images=False))
    assert (plain.images, left_out) == (None, ("visual",))
    alone, _ = exported(model / "text", tmp_path / "alone", ExportOptions("int8", check="none"))
    assert plain.files.keys() == alone.files.keys()
    assert VISION_GRAPH_NAME not in plain.files
    assert plain.files[GRAPH_NAME] == alone.files[GRAPH_NAME]


@pytest.mark.long
def test_eyes_are_rounded_as_the_text_model_is(model: Path, tmp_path: Path) -> None:
    report = export_model(model, tmp_path / "out", ExportOptions("int8", check="quick"))
    assert 0 < report.checks["image_kl_nats"] < 0.01  # behind an image
    assert 0 < report.checks["image_feature_error"] < 0.1 * report.checks["image_feature_scale"]
    package = ModelPackage.open(tmp_path / "out")
    assert package.manifest.images is not None
    inputs = prepare(drawn_picture(), package.manifest.images.rules)[0].inputs
    towers = [HostVision.open(package, 1, is_native) for is_native in (True, False)]
    native, defined = (np.asarray(tower.features(inputs, lambda: True)) for tower in towers)
    assert np.array_equal(native, defined)


def test_another_precision_of_eyes_is_wanted_or_refused() -> None:
    assert [ExportOptions(name).tower_precision for name in ("fp32", "int4", "keep")] == ["fp32", "int8", "keep"]
    assert ExportOptions("int8", image_precision="fp32").tower_precision == "fp32"
    with pytest.raises(ConfigError, match="but images are left out"):
        ExportOptions("int8", has_images=False, image_precision="fp32")
    with pytest.raises(ConfigError, match="image_precision is 'int4', but must be one of auto, fp32, int8, int8-a16"):
        ExportOptions("int8", image_precision="int4")


@pytest.mark.parametrize("num_bytes", [100, 100_000, 400_000])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(model: Path, tmp_path: Path, num_bytes: int) -> None:
    """It ends in the tokenizer, in the graph that sees or in the weights of the text model."""
    with small_disk(num_bytes), pytest.raises(ReaderEdgeError, match=r"cannot be written \(File too large\)"):
        export_model(model, tmp_path / "out", ExportOptions("fp32", check="none"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_say_how_pixels_are_read_is_its_text_model(spoilt: Path) -> None:
    assert find_images(find_source(spoilt, None)) is not None
    (spoilt / "preprocessor_config.json").unlink()
    lines: list[str] = []
    assert find_images(find_source(spoilt, None), lines.append) is None
    assert ["has neither preprocessor_config.json nor processor_config.json" in line for line in lines] == [True]
    assert find_images(find_source(spoilt / "text", None)) is None


def test_an_export_that_leaves_eyes_out_by_its_options_says_why(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Begun(Exception):  # noqa: N818
        """The check of the source has ended."""

    def begin(*_: object) -> None:
        raise Begun

    monkeypatch.setattr("reader_edge_export.package_export.PackageExport", begin)
    monkeypatch.setattr("reader_edge_export.pipeline.check_options", lambda *_: None)  # of the text model's own
    lines: list[list[str]] = []
    for folder, options in (
        (model, ExportOptions("int8", attention="fast")),
        (model, ExportOptions("fp16")),
        (model, ExportOptions("int8", attention="fast", has_images=False)),
        (model / "text", ExportOptions("int8", attention="fast")),
    ):
        lines.append([])
        with pytest.raises(Begun):
            export_model(folder, tmp_path / "out", options, on_message=lines[-1].append)
    (fast,), (half,), *others = lines
    assert "exact attention on a CPU: with attention 'fast' in int8 the package will read texts alone." in fast
    assert "attention 'exact' in fp16" in half
    assert others == [[], []]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vision_config": 5}, "vision_config as 5: it must be an object"),
        ({"vision_config": {"model_type": "other_vision"}}, "that of a 'other_vision', of which qwen3_5_vision"),
        ({"vision_config": {"whitening": 1}}, "'whitening' to 1, which a qwen3_5_vision .*--no-images"),
        ({"vision_config": {"deepstack_visual_indexes": [1]}}, "'deepstack_visual_indexes'"),
        ({"vision_config": {"depth": 10**6}}, "1000000 layers, and 1024 at most"),
        ({"vision_config": {"patch_size": [4, 4]}}, "patch_size"),
        ({"image_token_id": 320}, "image_token_id as 320, which is no token"),
        ({"image_token_id": ...}, "image_token_id as None"),
    ],
)
def test_a_config_that_eyes_cannot_be_made_by_is_refused(changes: dict[str, Any], words: str, spoilt: Path) -> None:
    vision = changes.get("vision_config")
    if isinstance(vision, dict):
        changes["vision_config"] = json.loads((spoilt / "config.json").read_text())["vision_config"] | vision
    change_config(spoilt, **changes)
    with pytest.raises(ReaderEdgeError, match=words):
        find_images(find_source(spoilt, None))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("model.visual.pos_embed.weight", None, "lack visual.pos_embed.weight"),
        ("model.visual.merger.norm.weight", torch.ones(3), r"of the shape \(3,\) instead of \(32,\)"),
        ("model.visual.other.weight", torch.ones(3), "holds visual.other.weight, for which"),
        ("model.visual.merger.norm.weight", torch.full((32,), torch.nan), "not all finite"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    name: str, value: torch.Tensor | None, words: str, spoilt: Path, tmp_path: Path
) -> None:
    weights = load_file(spoilt / "model.safetensors")
    weights.pop(name, None)
    save_file(weights | ({} if value is None else {name: value}), spoilt / "model.safetensors", {"format": "pt"})
    with pytest.raises(ReaderEdgeError, match=words):
        export_model(spoilt, tmp_path / "out", ExportOptions("fp32", check="none"))


@pytest.mark.long
def test_eyes_are_read_beside_a_text_model_in_fp8_but_not_in_fp8(tmp_path: Path) -> None:
    """As Ministral 3 is published: its text model in FP8 with one scale for a matrix, the rest in BF16."""
    folder = build_seeing_model("mistral3", tmp_path / "model")
    eyes = {name: value for name, value in load_file(folder / "model.safetensors").items() if "language" not in name}
    quantize(folder, Path(shutil.copytree(folder, tmp_path / "plain")), WRITERS["fp8 with one scale"])
    with pytest.raises(ReaderEdgeError, match="as F8_E4M3, which is read of text models alone"):
        export_model(folder, tmp_path / "out", ExportOptions("fp32", check="none"))
    weights = load_file(folder / "model.safetensors")
    texts = {name: value for name, value in weights.items() if not name.startswith("vision_tower")}
    save_file(texts | eyes, folder / "model.safetensors", {"format": "pt"})
    manifest, left_out = exported(folder, tmp_path / "out", ExportOptions("fp32", check="none"))
    assert manifest.images is not None
    assert left_out == ()


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("qwen3_5", {"out_hidden_size": 48}, "features of 48 numbers to a text model of 64"),
        ("qwen3_5", {"num_heads": 5}, r"tower that cannot be computed \(.*--no-images"),
        ("qwen3_vl", {"deepstack_visual_indexes": [0, 2]}, r"as \[0, 2\], which must be layers of its 2"),
        ("qwen3_vl", {"deepstack_visual_indexes": [1, 0]}, r"as \[1, 0\], which must be layers"),
        ("qwen2_5_vl", {"in_chans": 4}, "'in_chans' to 4"),
        ("qwen2_5_vl", {"spatial_patch_size": 8}, "'spatial_patch_size' to 8"),
        ("qwen2_5_vl", {"fullatt_block_indexes": 1}, "fullatt_block_indexes as 1, which must be a list"),
        ("qwen2_5_vl", {"window_size": 12}, "window_size is no multiple"),
    ],
)
def test_towers_of_qwen_that_cannot_be_are_refused(
    name: str, changes: dict[str, Any], words: str, qwens: dict[str, Path], tmp_path: Path
) -> None:
    spoilt = Path(shutil.copytree(qwens[name], tmp_path / "spoilt"))
    change_config(spoilt, vision_config=json.loads((spoilt / "config.json").read_text())["vision_config"] | changes)
    with pytest.raises(ReaderEdgeError, match=words):
        export_model(spoilt, tmp_path / "out", ExportOptions("fp32", check="none"))


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("qwen3_vl", {"text_keys": {"num_hidden_layers": 1}}, "has 2 deepstack_visual_indexes, more than"),
        ("qwen2_5_vl", {"rope": {"mrope_section": [2, 2, 3]}}, r"mrope_section \[2, 2, 3\], which are not the 8 "),
    ],
)
def test_eyes_that_do_not_fit_the_text_model_are_refused(
    name: str, changes: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EYES, name, replace(EYES[name], **changes))
    folder = build_seeing_model(name, tmp_path / "model")
    with pytest.raises(ReaderEdgeError, match=words):
        export_model(folder, tmp_path / "out", ExportOptions("fp32", check="none"))


@pytest.mark.long
def test_a_package_that_sees_is_not_cut(tmp_path: Path) -> None:
    folder = build_seeing_model("mistral3", tmp_path / "model")
    exported(folder, tmp_path / "package", ExportOptions("fp32", check="none"))
    with pytest.raises(ReaderEdgeError, match="sees images, which no pipeline does yet"):
        split_package(tmp_path / "package", tmp_path / "out", 2)
