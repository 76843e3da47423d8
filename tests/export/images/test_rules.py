import json
from pathlib import Path
from typing import Any

import pytest

from reader_edge_export.images.rules import read_image_rules
from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError
from tests.export.images.published_processors import PROCESSORS, Published
from tests.runtime.images.published_rules import RULES


def write_folder(folder: Path, published: Published, **changed: Any) -> dict[str, Any]:
    """The files of a published model that tell of images. changed: values of preprocessor_config.json."""
    settings = {**published.image_settings, **changed}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings), "utf-8")
    if published.processor_settings:
        (folder / "processor_config.json").write_text(json.dumps(published.processor_settings), "utf-8")
    return published.config


@pytest.mark.parametrize("name", RULES)
def test_rules_of_published_folders(name: str, tmp_path: Path) -> None:
    assert read_image_rules(tmp_path, write_folder(tmp_path, PROCESSORS[name])) == RULES[name]


@pytest.mark.parametrize("name", RULES)
def test_rules_within_the_file_of_a_processor(name: str, tmp_path: Path) -> None:
    """As transformers 5 saves them, whatever another file says."""
    published = PROCESSORS[name]
    write_folder(tmp_path, published, resample=0)
    whole = {**published.processor_settings, "image_processor": published.image_settings}
    (tmp_path / "processor_config.json").write_text(json.dumps(whole), "utf-8")
    assert read_image_rules(tmp_path, published.config) == RULES[name]


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("qwen3_5", "do_resize", False),
        ("qwen3_5", "rescale_factor", 1 / 127.5),
        ("qwen3_5", "do_center_crop", True),
        ("qwen3_5", "auto_map", {"AutoImageProcessor": "own.Processor"}),
        ("qwen3_5", "do_sharpen", True),
        ("qwen3_5", "resample", 0),
        ("qwen3_5", "image_processor_type", "SiglipImageProcessor"),
        ("gemma3", "do_pan_and_scan", True),
        ("gemma3", "do_pan_and_scan", 0),
        ("lfm2_vl", "max_pixels_tolerance", 3.0),
        ("lfm2_vl", "use_image_special_tokens", False),
    ],
)
def test_what_would_change_pixels_in_another_way_is_refused_by_name(
    name: str, key: str, value: object, tmp_path: Path
) -> None:
    config = write_folder(tmp_path, PROCESSORS[name], **{key: value})
    with pytest.raises(UnsupportedArchitectureError, match=key if key != "image_processor_type" else "Siglip"):
        read_image_rules(tmp_path, config)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("qwen3_5", "size", {"height": 32, "width": 32}),
        ("qwen3_5", "size", {"shortest_edge": "a", "longest_edge": 9}),
        ("qwen3_5", "patch_size", 14),
        ("qwen3_5", "image_mean", "grey"),
        ("qwen3_5", "image_mean", "\ud800"),
        ("qwen3_5", "image_mean", [0.5, 0.5, float("nan")]),
        ("qwen3_5", "image_std", [1e-60] * 3),
        ("qwen3_5", "image_processor_type", ["Qwen2VLImageProcessor"]),
        ("gemma3", "size", {"height": 448, "width": 448}),
        ("lfm2_vl", "min_tiles", 1),
        ("lfm2_vl", "use_thumbnail", "yes"),
        ("smolvlm", "max_image_size", {"longest_edge": 384}),
        ("smolvlm", "size", {"longest_edge": 1 << 20}),
    ],
)
def test_values_that_cannot_be_or_do_not_fit_the_tower_are_refused(
    name: str, key: str, value: object, tmp_path: Path
) -> None:
    config = write_folder(tmp_path, PROCESSORS[name], **{key: value})
    with pytest.raises(ExportError, match=r"^[^\n]+\.$"):
        read_image_rules(tmp_path, config)


@pytest.mark.parametrize(
    "config",
    [{"model_type": "llava"}, {}, {"model_type": "qwen3_5"}, {"model_type": "qwen3_5", "vision_config": {}}],
)
def test_a_config_without_a_known_tower_is_refused(config: dict[str, Any], tmp_path: Path) -> None:
    write_folder(tmp_path, PROCESSORS["qwen3_5"])
    with pytest.raises(ExportError):
        read_image_rules(tmp_path, config)


def test_a_folder_without_a_processor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"holds no preprocessor_config\.json"):
        read_image_rules(tmp_path, PROCESSORS["gemma4"].config)
