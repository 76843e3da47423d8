"""The rules of a folder's image processor, as transformers 5.23 would run it; what they do not hold is refused."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reader_edge_export.sources.folder.folder_files import read_json
from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError
from reader_edge_runtime.package.images import ImageRules
from reader_edge_runtime.untrusted.untrusted_json import converted
from reader_edge_runtime.untrusted.user_input import short_repr

_NAMES = ("processor_config.json", "preprocessor_config.json")  # the first may have the second's content within
_REMEDY = "export the model without its images (--no-images)"
_WHOLE_TYPES = {"qwen3_5_moe": "qwen3_5", "qwen3_vl_moe": "qwen3_vl"}  # whose processor is that of another
_FILTERS = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers

_CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
_HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_QWEN = {
    **{"resample": 3, **_CLIP, "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}},
    **{"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "min_pixels": None, "max_pixels": None},
}
_TILED = {
    **{"resample": 1, **_HALF, "size": {"longest_edge": 4 * 364}, "max_image_size": {"longest_edge": 364}},
    "do_image_splitting": True,
}
_DEFAULTS: dict[str, dict[str, Any]] = {  # the keys that are read, and what a processor's class supposes for them
    **dict.fromkeys(("qwen3_5", "qwen3_vl", "qwen2_5_vl"), _QWEN),
    **dict.fromkeys(("smolvlm", "idefics3"), _TILED),
    "mistral3": {"resample": 3, **_CLIP, "size": {"longest_edge": 1024}},
    "gemma3": {"resample": 2, **_HALF, "size": {"height": 224, "width": 224}},
    "gemma4": {
        "resample": 3,
        "do_normalize": False,
        "patch_size": 16,
        "max_soft_tokens": 280,
        "pooling_kernel_size": 3,
    },
    "lfm2_vl": {
        **{"resample": 2, **_HALF, "downsample_factor": 2, "do_image_splitting": True, "min_tiles": 2, "max_tiles": 10},
        **{"use_thumbnail": True, "min_image_tokens": 64, "max_image_tokens": 256, "encoder_patch_size": 16},
        "tile_size": 512,
    },
}
_TYPES = {  # image_processor_type, without what follows it
    **dict.fromkeys(("qwen3_5", "qwen3_vl"), ("Qwen2VL", "Qwen3VL")),
    **{"qwen2_5_vl": ("Qwen2VL", "Qwen2_5_VL"), "mistral3": ("Pixtral",), "gemma3": ("Gemma3",)},
    **{"gemma4": ("Gemma4",), "lfm2_vl": ("Lfm2Vl",), "smolvlm": ("SmolVLM",), "idefics3": ("Idefics3",)},
}
_FIXED = {  # what changes nothing at this value
    **{"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_center_crop": False},
    **{"do_pan_and_scan": False, "max_pixels_tolerance": 2.0, "use_image_special_tokens": True},
    **{"image_token": None, "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"},
}
_INERT = {  # what says nothing of a single image's pixels, or is about other media
    *("image_processor_type", "processor_class", "feature_extractor_type", "_valid_processor_keys", "crop_size"),
    *("data_format", "input_data_format", "device", "disable_grouping", "return_tensors", "default_to_square"),
    *("do_convert_rgb", "do_pad", "pad_size", "return_row_col_info", "return_metadata", "transformers_version"),
    *("pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops", "pan_and_scan_min_ratio_to_activate"),
    *("video_sampling", "num_frames", "fps", "max_frames", "image_seq_length", "max_num_patches", "image_processor"),
    *("video_processor", "feature_extractor", "audio_seq_length", "audio_ms_per_token", "chat_template", "tokenizer"),
}
_OWN_INERT = {  # of one family
    "mistral3": {"patch_size"},  # the processor says what is used
    "gemma4": {"size", "image_mean", "image_std"},
    "lfm2_vl": {"size", "patch_size", "do_resize"},
}


@dataclass(frozen=True, slots=True)
class _Values:
    """Of one file. name: what sentences call it."""

    name: str
    values: Mapping[str, Any]

    def count(self, key: str) -> int:
        value = self.values.get(key)
        if type(value) is not int or not 1 <= value <= 1 << 26:
            raise ExportError(f"{self.name} gives {key} as {short_repr(value)}, which must be a count: correct it.")
        return value

    def sides(self, key: str, *names: str) -> tuple[int, ...]:
        """Of an object with these names alone."""
        value = self.values.get(key)
        given = {name: side for name, side in value.items() if side is not None} if isinstance(value, dict) else {}
        if set(given) != set(names):
            words = f"which must have {' and '.join(names)} alone: {_REMEDY}"
            raise ExportError(f"{self.name} gives {key} as {short_repr(value)}, {words}.")
        return tuple(_Values(f"{self.name} in {key}", given).count(name) for name in names)

    def require(self, key: str, wanted: int) -> None:
        """Raise ExportError where a key is there and says something else than the tower's config."""
        if self.values.get(key) is not None and self.count(key) != wanted:
            found = f"{self.name} gives {key} as {self.values[key]}, but the tower of config.json needs {wanted}"
            raise ExportError(f"{found}: fetch the model again.")


@dataclass(frozen=True, slots=True)
class _Configs:
    """image: of the image processor. whole, vision: of config.json. processor: of the processor around it."""

    image: _Values
    processor: _Values
    whole: _Values
    vision: _Values


def read_image_rules(folder: Path, config: Mapping[str, Any]) -> ImageRules:
    """Of a folder in Hugging Face format. config: values of its config.json, with what its class supposes (`to_dict`).

    Raises UnsupportedArchitectureError for what would change pixels in another way than the rules can say, by the
    key's name, and ExportError for values that cannot be.
    """
    model_type = str(config.get("model_type"))
    family = _WHOLE_TYPES.get(model_type, model_type)
    if family not in _DEFAULTS:
        raise UnsupportedArchitectureError(f"Images of a {model_type!r:.80} model are not known: {_REMEDY}.")
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        raise ExportError(f"config.json gives vision_config as {short_repr(vision)}, no object: fetch the model again.")
    image, processor = _processor_values(folder)
    _check_keys(image, family, {"do_normalize", *_DEFAULTS[family]})
    _check_keys(processor, family, {"patch_size", "spatial_merge_size", "image_seq_len"})
    given = {key: value for key, value in image.values.items() if value is not None}
    image = _Values(image.name, {**_DEFAULTS[family], **given})
    configs = _Configs(image, processor, _Values("config.json", config), _Values("config.json's vision_config", vision))
    fields = {"family": family, "filter": _filter(image), **_channels(image), **_READERS[family](configs)}
    return converted(fields, ImageRules, image.name, ExportError, _REMEDY)


def _processor_values(folder: Path) -> tuple[_Values, _Values]:
    """Of the image processor, and of the processor around it."""
    outer_path, path = (folder / name for name in _NAMES)
    outer = read_json(outer_path) if outer_path.exists() or outer_path.is_symlink() else {}
    inner = outer.get("image_processor")
    if inner is None:
        return _Values(f"'{path}'", read_json(path)), _Values(f"'{outer_path}'", outer)
    if not isinstance(inner, dict):
        raise ExportError(f"'{outer_path}' gives image_processor as {short_repr(inner)}, no object: correct it.")
    return _Values(f"'{outer_path}'", inner), _Values(f"'{outer_path}'", outer)


def _check_keys(values: _Values, family: str, read: set[str]) -> None:
    """Refuse by name what would change pixels or the text that stands for them."""
    kind = values.values.get("image_processor_type")
    if kind is not None and kind not in [
        f"{name}ImageProcessor{end}" for name in _TYPES[family] for end in ("", "Fast")
    ]:
        words = f"of which {' and '.join(f'{name}ImageProcessor' for name in _TYPES[family])} can be exported"
        raise UnsupportedArchitectureError(f"{values.name} names a {short_repr(kind)}, {words}: {_REMEDY}.")
    fixed = _FIXED | {"image_token": "[IMG]" if family == "mistral3" else None}
    for key, value in values.values.items():
        if value is None or key in read or key in _INERT or key in _OWN_INERT.get(family, ()):
            continue
        is_flag = isinstance(fixed.get(key), bool)
        if key not in fixed or isinstance(value, bool) != is_flag or value != fixed[key]:
            words = "which would change what the model sees"
            raise UnsupportedArchitectureError(
                f"{values.name} sets {key!r:.80} to {short_repr(value)}, {words}: {_REMEDY}."
            )


def _filter(image: _Values) -> str:
    number = image.values["resample"]
    if type(number) is not int or number not in _FILTERS:
        known = ", ".join(f"{number} ({name})" for number, name in _FILTERS.items())
        raise UnsupportedArchitectureError(
            f"{image.name} gives resample as {short_repr(number)}, of which {known} are known: {_REMEDY}."
        )
    return _FILTERS[number]


def _channels(image: _Values) -> dict[str, Any]:
    if image.values.get("do_normalize") is not None and not _flag(image, "do_normalize"):
        return {}
    return {"mean": image.values["image_mean"], "std": image.values["image_std"]}


def _flag(image: _Values, key: str) -> bool:
    if not isinstance(image.values[key], bool):
        raise ExportError(f"{image.name} gives {key} as {short_repr(image.values[key])}, no flag: correct it.")
    return bool(image.values[key])


def _qwen(configs: _Configs) -> dict[str, Any]:
    image, vision = configs.image, configs.vision
    patch, merge = vision.count("patch_size"), vision.count("spatial_merge_size")
    for key, wanted in (("patch_size", patch), ("merge_size", merge), ("temporal_patch_size", 2)):
        image.require(key, wanted)
    vision.require("temporal_patch_size", 2)
    least, most = image.sides("size", "shortest_edge", "longest_edge")
    least = image.count("min_pixels") if image.values["min_pixels"] is not None else least
    most = image.count("max_pixels") if image.values["max_pixels"] is not None else most
    numbers = {"patch_size": patch, "merge_size": merge, "min_pixels": least, "max_pixels": most}
    if configs.whole.values["model_type"] == "qwen2_5_vl":
        return {**numbers, "window_size": vision.count("window_size")}
    return {**numbers, "position_side": _side(vision.count("num_position_embeddings"), "num_position_embeddings")}


def _mistral3(configs: _Configs) -> dict[str, Any]:
    patch, merge = configs.vision.count("patch_size"), configs.whole.count("spatial_merge_size")
    configs.processor.require("patch_size", patch)
    configs.processor.require("spatial_merge_size", merge)
    (longest,) = configs.image.sides("size", "longest_edge")
    return {"patch_size": patch, "merge_size": merge, "longest_edge": longest}


def _gemma3(configs: _Configs) -> dict[str, Any]:
    patch, side = configs.vision.count("patch_size"), configs.vision.count("image_size")
    height, width = configs.image.sides("size", "height", "width")
    if height != width or height != side:
        found = f"{configs.image.name} gives a size of {width} x {height}, but the tower of config.json needs {side}"
        raise ExportError(f"{found} on a side: fetch the model again.")
    tokens = _side(configs.whole.count("mm_tokens_per_image"), "mm_tokens_per_image")
    configs.processor.require("image_seq_length", tokens**2)
    return {"patch_size": patch, "merge_size": side // patch // tokens, "tile_size": side}


def _gemma4(configs: _Configs) -> dict[str, Any]:
    image, vision = configs.image, configs.vision
    patch, merge = vision.count("patch_size"), vision.count("pooling_kernel_size")
    image.require("patch_size", patch)
    image.require("pooling_kernel_size", merge)
    most = image.count("max_soft_tokens") * (patch * merge) ** 2
    return {"patch_size": patch, "merge_size": merge, "max_pixels": most}


def _lfm2(configs: _Configs) -> dict[str, Any]:
    image, vision = configs.image, configs.vision
    patch, merge = vision.count("patch_size"), configs.whole.count("downsample_factor")
    image.require("encoder_patch_size", patch)
    image.require("downsample_factor", merge)
    pixels = (patch * merge) ** 2
    return {
        **{"patch_size": patch, "merge_size": merge, "tile_size": image.count("tile_size")},
        **{
            "min_pixels": image.count("min_image_tokens") * pixels,
            "max_pixels": image.count("max_image_tokens") * pixels,
        },
        **{"min_tiles": image.count("min_tiles"), "max_tiles": image.count("max_tiles")},
        **{"cuts_tiles": _flag(image, "do_image_splitting"), "has_overview": _flag(image, "use_thumbnail")},
        "position_side": _side(vision.count("num_patches"), "num_patches"),
    }


def _tiled(configs: _Configs) -> dict[str, Any]:
    patch, merge = configs.vision.count("patch_size"), configs.whole.count("scale_factor")
    (longest,) = configs.image.sides("size", "longest_edge")
    (tile,) = configs.image.sides("max_image_size", "longest_edge")
    configs.vision.require("image_size", tile)
    configs.processor.require("image_seq_len", (tile // patch // merge) ** 2)
    cuts_tiles = _flag(configs.image, "do_image_splitting")
    numbers = {"patch_size": patch, "merge_size": merge, "longest_edge": longest, "tile_size": tile}
    return {**numbers, "cuts_tiles": cuts_tiles}


def _side(area: int, key: str) -> int:
    side = math.isqrt(area)
    if side**2 != area:
        raise ExportError(f"config.json gives {key} as {area}, which is no square: fetch the model again.")
    return side


_READERS: dict[str, Callable[[_Configs], dict[str, Any]]] = {
    **dict.fromkeys(("qwen3_5", "qwen3_vl", "qwen2_5_vl"), _qwen),
    **dict.fromkeys(("smolvlm", "idefics3"), _tiled),
    **{"mistral3": _mistral3, "gemma3": _gemma3, "gemma4": _gemma4, "lfm2_vl": _lfm2},
}
