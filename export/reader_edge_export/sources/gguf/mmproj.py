"""What sees images beside the GGUF file of a text model: an mmproj file, as llama.cpp's converters write it.

`conversion/` and `tools/mtmd/clip.cpp` there are the reference for keys and names. How pixels are read stands in a file
only in part: the filter and most limits come with the kind of projector.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reader_edge_export.sources.find import mmproj_files
from reader_edge_export.sources.gguf.gguf_file import GgufFile, is_dequantizable
from reader_edge_export.sources.gguf.gguf_source import GgufSource
from reader_edge_export.sources.gguf.layer_sizes import architecture_of
from reader_edge_export.sources.gguf.metadata import Metadata
from reader_edge_export.sources.image_part import FAMILIES, ImagePart, Mmproj
from reader_edge_runtime.errors import GgufError, UnsupportedArchitectureError
from reader_edge_runtime.package.images import ImageRules, placeholder_of
from reader_edge_runtime.untrusted.untrusted_json import converted

_REMEDY = "name the one of this model (--mmproj FILE), or export it without images (--no-images)"
_MAX_LAYERS = 1 << 10
_MAX_SECTION = 1 << 12
_SAME = 1e-3  # of an epsilon, which files round to 32 bits
_INERT = {"has_vision_encoder": True, "has_text_encoder": False, "has_llava_projector": True}
_SOUNDS = ("audio.", "has_audio_encoder")  # of models that hear too, which is left out


@dataclass(frozen=True, slots=True)
class _Opened:
    """An mmproj file that is being read. width: of the text model's states."""

    file: GgufFile
    values: Metadata
    width: int

    def size(self, key: str, default: int | None = None) -> int:
        return self.values.size(f"vision.{key}", default)

    def epsilon(self, only: float | None = None) -> float:
        """Of its norms. only: the one that its kind of tower has."""
        found = _short(self.values.positive("vision.attention.layer_norm_epsilon"))
        if only is not None and not math.isclose(found, only, rel_tol=_SAME):
            raise self.file.error(f"has norms with an epsilon of {found:g}, where towers of its kind have {only:g}")
        return found

    def activation(self, *known: str) -> str:
        """Of those that its kind of tower may have: "gelu" or "silu"."""
        found = [name for name in ("gelu", "silu") if self.values.flag(f"use_{name}", False)]
        if len(found) != 1 or found[0] not in known:
            raise self.file.error(f"bends values by {' and '.join(found) or 'nothing known'}, not by {known[0]}")
        return found[0]

    def shape(self, name: str, num_axes: int) -> tuple[int, ...]:
        """Of a tensor that tells sizes. Raises GgufError where it is missing, or has other axes."""
        tensor = self.file.tensors.get(name)
        if tensor is None or len(tensor.shape) != num_axes:
            found = "no such tensor" if tensor is None else f"the shape {tensor.shape}"
            raise self.file.error(f"has {found} for {name}, which gives sizes of its tower", _REMEDY)
        return tensor.shape

    def side(self, area: int, key: str) -> int:
        side = math.isqrt(area)
        if side**2 != area:
            raise self.file.error(f"has {area} {key}, which is no square")
        return side

    def tower(self) -> dict[str, int]:
        """Sizes of a tower, by the names that most configs of transformers have for them."""
        num_layers = self.size("block_count")
        if num_layers > min(_MAX_LAYERS, len(self.file.tensors)):
            held = f"{num_layers} layers in {len(self.file.tensors)} tensors"
            raise self.file.error(f"counts {held}, and {_MAX_LAYERS} are the most")
        return {
            "hidden_size": self.size("embedding_length"),
            "intermediate_size": self.size("feed_forward_length"),
            "num_hidden_layers": num_layers,
            "num_attention_heads": self.size("attention.head_count"),
            "patch_size": self.size("patch_size"),
        }

    def channels(self) -> dict[str, list[float]]:
        return {
            name: [_short(each) for each in self.values.numbers(f"vision.image_{name}")] for name in ("mean", "std")
        }


Read = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]  # vision_config, keys beside it, numbers of the rules


def _qwen3(opened: _Opened) -> Read:
    sizes, merge = opened.tower(), opened.size("spatial_merge_size", 2)
    key = "vision.is_deepstack_layers"
    deepstack = opened.values.flags(key) if opened.values.has(key) else []
    if len(deepstack) > sizes["num_hidden_layers"]:
        raise opened.file.error(f"tells of {len(deepstack)} layers whether texts get their states, and has fewer")
    opened.activation("gelu")
    opened.epsilon(1e-6)
    opened.size("image_size")
    num_positions = opened.shape("v.position_embd.weight", 2)[0]
    vision = {
        "depth": sizes.pop("num_hidden_layers"),
        "num_heads": sizes.pop("num_attention_heads"),
        **sizes,
        "spatial_merge_size": merge,
        "out_hidden_size": opened.width,
        "num_position_embeddings": num_positions,
        "deepstack_visual_indexes": [layer for layer, is_given in enumerate(deepstack) if is_given],
    }
    least, most = opened.size("image_min_pixels", 1 << 16), opened.size("image_max_pixels", 1 << 24)
    rules = {"merge_size": merge, "min_pixels": least, "max_pixels": most}
    rules["position_side"] = opened.side(num_positions, "positions")
    return vision, {}, {**rules, **opened.channels()}


def _qwen2_5(opened: _Opened) -> Read:
    """Its windows' size stands nowhere: as its makers have it, and llama.cpp."""
    sizes, merge = opened.tower(), opened.size("spatial_merge_size", 2)
    opened.activation("silu")
    opened.epsilon(1e-6)
    opened.size("image_size")
    pattern, depth = opened.size("n_wa_pattern"), sizes.pop("num_hidden_layers")
    vision = {
        "depth": depth,
        "num_heads": sizes.pop("num_attention_heads"),
        **sizes,
        "spatial_merge_size": merge,
        "out_hidden_size": opened.width,
        "window_size": opened.size("window_size", 112),
        "fullatt_block_indexes": list(range(pattern - 1, depth, pattern)),
    }
    least, most = opened.size("image_min_pixels", 3136), opened.size("image_max_pixels", 12845056)
    rules = {"merge_size": merge, "min_pixels": least, "max_pixels": most, "window_size": vision["window_size"]}
    return vision, {}, {**rules, **opened.channels()}


def _pixtral(opened: _Opened) -> Read:
    opened.epsilon(1e-5)
    edge, merge = opened.size("image_size"), opened.size("spatial_merge_size", 1)
    vision = {**opened.tower(), "image_size": edge, "hidden_act": opened.activation("silu", "gelu")}
    vision["rope_theta"] = opened.values.positive("rope.freq_base", 10000.0)
    beside = {"projector_hidden_act": "gelu", "spatial_merge_size": merge}
    beside["multimodal_projector_bias"] = "mm.1.bias" in opened.file.tensors
    return vision, beside, {"merge_size": merge, "longest_edge": edge, **opened.channels()}


def _lfm2(opened: _Opened) -> Read:
    opened.activation("gelu")
    opened.size("image_size")
    merge, num_positions = opened.size("projector.scale_factor", 2), opened.shape("v.position_embd.weight", 2)[0]
    sizes = opened.tower()
    beside = {
        "downsample_factor": merge,
        "projector_hidden_act": "gelu",
        "projector_hidden_size": opened.shape("mm.1.weight", 2)[0],
        "projector_bias": "mm.1.bias" in opened.file.tensors,
        "projector_use_layernorm": "mm.input_norm.weight" in opened.file.tensors,
    }
    pixels = (sizes["patch_size"] * merge) ** 2
    rules = {
        **{"merge_size": merge, "tile_size": 512, "cuts_tiles": True, "has_overview": True},
        **{"min_tiles": opened.size("preproc_min_tiles", 2), "max_tiles": opened.size("preproc_max_tiles", 10)},
        **{"min_pixels": opened.size("image_min_pixels", 64 * pixels)},
        **{"max_pixels": opened.size("image_max_pixels", 256 * pixels)},
        "position_side": opened.side(num_positions, "positions"),
    }
    vision = {**sizes, "num_patches": num_positions, "layer_norm_eps": opened.epsilon(), "vision_use_head": False}
    return vision, beside, {**rules, **opened.channels()}


def _gemma3(opened: _Opened) -> Read:
    opened.activation("gelu")
    sizes, edge, merge = opened.tower(), opened.size("image_size"), opened.size("projector.scale_factor", 4)
    vision = {**sizes, "image_size": edge, "layer_norm_eps": opened.epsilon(), "vision_use_head": False}
    beside = {"mm_tokens_per_image": (edge // sizes["patch_size"] // merge) ** 2}
    return vision, beside, {"merge_size": merge, "tile_size": edge, **opened.channels()}


def _gemma4(opened: _Opened) -> Read:
    """Of the kind whose files say nothing of what bends values, and where pixels are not normalised."""
    if opened.values.has("use_gelu") or opened.values.has("use_silu"):
        opened.activation("gelu")
    opened.size("image_size")
    if opened.channels() != {"mean": [0.0] * 3, "std": [1.0] * 3}:
        raise opened.file.error("normalises pixels, which Gemma 4 does not")
    sizes, merge = opened.tower(), opened.size("projector.scale_factor", 3)
    (num_rows, _), (num_kv_rows, _) = (opened.shape(f"v.blk.0.attn_{name}.weight", 2) for name in "qk")
    head_dim = max(1, num_rows // sizes["num_attention_heads"])
    vision = {
        **sizes,
        "head_dim": head_dim,
        "num_key_value_heads": max(1, num_kv_rows // head_dim),
        "rms_norm_eps": opened.epsilon(),
        "pooling_kernel_size": merge,
        "position_embedding_size": opened.shape("v.position_embd.weight", 3)[1],
        "use_clipped_linears": "v.blk.0.attn_q.input_max" in opened.file.tensors,
        "standardize": "v.std_bias" in opened.file.tensors,
    }
    most = opened.size("image_max_pixels", 280 * (sizes["patch_size"] * merge) ** 2)
    return vision, {}, {"merge_size": merge, "max_pixels": most}


@dataclass(frozen=True, slots=True)
class _Projector:
    """A kind of mmproj file. wholes: model_type of the whole, by the architecture of the text model's file.

    filter: by which images are resized. read: what it says.
    """

    wholes: Mapping[str, str]
    filter: str
    read: Callable[[_Opened], Read]


_PROJECTORS = {  # by what files call them
    "qwen3vl_merger": _Projector(
        {"qwen35": "qwen3_5", "qwen35moe": "qwen3_5_moe", "qwen3vl": "qwen3_vl", "qwen3vlmoe": "qwen3_vl_moe"},
        *("bicubic", _qwen3),
    ),
    "qwen2.5vl_merger": _Projector({"qwen2vl": "qwen2_5_vl"}, "bicubic", _qwen2_5),
    "pixtral": _Projector({"mistral3": "mistral3", "llama": "mistral3"}, "bicubic", _pixtral),
    "lfm2": _Projector({"lfm2": "lfm2_vl"}, "bilinear", _lfm2),
    "gemma3": _Projector({"gemma3": "gemma3"}, "bilinear", _gemma3),
    "gemma4v": _Projector({"gemma4": "gemma4"}, "bicubic", _gemma4),
}


def find_mmproj(source: GgufSource, named: Path | None) -> ImagePart | None:
    """What sees images for the model of a file: what is named, or lies beside it; None where nothing does.

    Raises GgufError or UnsupportedArchitectureError where it does not fit the model, and for several beside it.
    """
    path = named or _beside(source)
    if path is None:
        return None
    file = GgufFile.open(path)
    opened = _Opened(file, Metadata(file, "clip"), int(source.config["hidden_size"]))
    projector, model_type = _projector_of(opened, source)
    _check_width(opened, source)
    for kind in {tensor.kind for tensor in file.tensors.values()}:
        if not is_dequantizable(kind):
            raise file.error(f"has weights of the type {kind.name}, whose values are not known")
    vision, beside, numbers = projector.read(opened)
    sounds = [key for key in file.metadata if key.removeprefix("clip.").startswith(_SOUNDS)]
    opened.values.check_all_read([key.removeprefix("clip.") for key in sounds], _INERT)
    family = FAMILIES[model_type]
    fields = {"family": _family_of(model_type), "patch_size": vision["patch_size"], "filter": projector.filter}
    rules = converted({**fields, **numbers}, ImageRules, f"'{path}'", GgufError, _REMEDY)
    seen = family.sees_whole_image
    if seen == "sliding" and source.config["hidden_size_per_layer_input"]:
        seen = "none"  # of Gemma 4 E2B and E4B alone, of which no file tells
    token_id = _token_id(source, model_type)
    if token_id is None:
        raise source.file.error(f"has no token {rules.placeholder!r}, in whose place images come", _REMEDY)
    pad_id = Metadata(source.file, "tokenizer.ggml").size("padding_token_id", 0, least=0)
    args = {"vision_config": {"model_type": family.vision_type, **vision}, **beside}
    sections = _sections(source) if family.sections else ()
    return ImagePart(path, model_type, args, token_id, seen, pad_id, sections, Mmproj(file, rules))


def _beside(source: GgufSource) -> Path | None:
    """The one file beside a model that sees. Raises GgufError where there are several."""
    architecture = architecture_of(source.file)
    wholes = [each.wholes[architecture] for each in _PROJECTORS.values() if architecture in each.wholes]
    if all(_token_id(source, model_type) is None for model_type in wholes):
        return None  # it reads texts alone, whatever lies there
    found = mmproj_files(source.file.path)
    if len(found) > 1:
        names = " and ".join(f"'{path.name}'" for path in found[:4])
        raise GgufError(f"'{source.file.path}' has {names} beside it, of which one is to see images for it: {_REMEDY}.")
    return found[0] if found else None


def _projector_of(opened: _Opened, source: GgufSource) -> tuple[_Projector, str]:
    """Of a file, and the model_type of the whole that it makes with the text model."""
    file, values = opened.file, opened.values
    architecture = architecture_of(file)
    if architecture != "clip" or Metadata(file, "general").text("type", "mmproj") != "mmproj":
        raise file.error(f"holds a {architecture!r:.80}, and nothing that sees images", _REMEDY)
    key = "projector_type" if values.has("projector_type") else "vision.projector_type"
    kind = values.text(key)
    if kind not in _PROJECTORS:
        raise UnsupportedArchitectureError(
            f"'{file.path}' sees images by {kind!r:.80}, of which {', '.join(_PROJECTORS)} can be exported: {_REMEDY}."
        )
    own, projector = architecture_of(source.file), _PROJECTORS[kind]
    if own not in projector.wholes:
        fitting = " or ".join(projector.wholes)
        raise file.error(
            f"sees images by {kind!r} for models of {fitting}, and '{source.file.path.name}' is one of {own}", _REMEDY
        )
    return projector, projector.wholes[own]


def _check_width(opened: _Opened, source: GgufSource) -> None:
    width = opened.size("projection_dim")
    if width != opened.width:
        own = f"and '{source.file.path.name}' has {opened.width}"
        raise opened.file.error(f"makes features of {width} numbers, {own}", _REMEDY)


def _token_id(source: GgufSource, model_type: str) -> int | None:
    """Of the token in whose place a feature comes; None where the model's vocabulary has none."""
    tokens, placeholder = source.vocabulary.tokens, placeholder_of(_family_of(model_type))
    return tokens.index(placeholder) if placeholder in tokens else None


def _sections(source: GgufSource) -> tuple[int, ...]:
    sections = Metadata(source.file, architecture_of(source.file)).sizes("rope.dimension_sections")
    if not 3 <= len(sections) <= 4 or not all(0 <= each <= _MAX_SECTION for each in sections):
        raise source.file.error(f"gives rope.dimension_sections as {sections!r:.80}, which must be three counts")
    return tuple(sections[:3])


def _family_of(model_type: str) -> str:
    return model_type.removesuffix("_moe")


def _short(number: float) -> float:
    """What was meant: 0.1, where a file has that in 32 bits."""
    return float(str(np.float32(number)))
