"""What each kind of mmproj file says of its tower, by llama.cpp's names of kinds (`clip.projector_type`).

`conversion/` and `tools/mtmd/clip.cpp` there are the reference for keys. How pixels are read stands in a file only in
part: the filter and most limits come with the kind.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reader_edge_export.sources.config.config_values import MAX_LAYERS
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.metadata import Metadata

REMEDY = "name the one of this model (--mmproj FILE), or `export` it without images (--no-images)"
_SAME = 1e-3  # of an epsilon, which files round to 32 bits


@dataclass(frozen=True, slots=True)
class Opened:
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
            raise self.file.error(f"has {found} for {name}, which gives sizes of its tower", REMEDY)
        return tensor.shape

    def side(self, area: int, key: str) -> int:
        side = math.isqrt(area)
        if side**2 != area:
            raise self.file.error(f"has {area} {key}, which is no square")
        return side

    def tower(self) -> dict[str, int]:
        """Sizes of a tower, by the names that most configs of transformers have for them."""
        num_layers = self.size("block_count")
        if num_layers > min(MAX_LAYERS, len(self.file.tensors)):
            held = f"{num_layers} layers in {len(self.file.tensors)} tensors"
            raise self.file.error(f"counts {held}, and {MAX_LAYERS} are the most")
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


_Read = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]  # vision_config, keys beside it, numbers of the rules


def _qwen(opened: Opened, least: int, most: int, activation: str) -> _Read:
    """What all of Qwen's have. least, most: pixels of an image."""
    sizes, merge = opened.tower(), opened.size("spatial_merge_size", 2)
    opened.activation(activation)
    opened.epsilon(1e-6)
    opened.size("image_size")
    vision = {
        "depth": sizes.pop("num_hidden_layers"),
        "num_heads": sizes.pop("num_attention_heads"),
        **sizes,
        "spatial_merge_size": merge,
        "out_hidden_size": opened.width,
    }
    return vision, {}, {"merge_size": merge, "min_pixels": least, "max_pixels": most, **opened.channels()}


def _qwen3(opened: Opened) -> _Read:
    vision, beside, rules = _qwen(opened, 1 << 16, 1 << 24, "gelu")
    key = "vision.is_deepstack_layers"
    deepstack = opened.values.flags(key) if opened.values.has(key) else []
    if len(deepstack) > vision["depth"]:
        raise opened.file.error(f"tells of {len(deepstack)} layers whether texts get their states, and has fewer")
    vision["deepstack_visual_indexes"] = [layer for layer, is_given in enumerate(deepstack) if is_given]
    vision["num_position_embeddings"] = opened.shape("v.position_embd.weight", 2)[0]
    rules["position_side"] = opened.side(vision["num_position_embeddings"], "positions")
    return vision, beside, rules


def _qwen2_5(opened: Opened) -> _Read:
    """Its windows' size stands nowhere: as its makers have it, and llama.cpp."""
    vision, beside, rules = _qwen(opened, 56 * 56, 12_845_056, "silu")
    period, window = opened.size("n_wa_pattern"), opened.size("window_size", 112)
    vision["fullatt_block_indexes"] = list(range(period - 1, vision["depth"], period))
    return {**vision, "window_size": window}, beside, {**rules, "window_size": window}


def _pixtral(opened: Opened) -> _Read:
    opened.epsilon(1e-5)
    edge, merge = opened.size("image_size"), opened.size("spatial_merge_size", 1)
    vision = {**opened.tower(), "image_size": edge, "hidden_act": opened.activation("silu", "gelu")}
    vision["rope_theta"] = opened.values.positive("rope.freq_base", 10000.0)
    beside = {"projector_hidden_act": "gelu", "spatial_merge_size": merge}
    beside["multimodal_projector_bias"] = "mm.1.bias" in opened.file.tensors
    return vision, beside, {"merge_size": merge, "longest_edge": edge, **opened.channels()}


def _lfm2(opened: Opened) -> _Read:
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
        **{"min_pixels": 64 * pixels, "max_pixels": 256 * pixels},
        "position_side": opened.side(num_positions, "positions"),
    }
    vision = {**sizes, "num_patches": num_positions, "layer_norm_eps": opened.epsilon(), "vision_use_head": False}
    return vision, beside, {**rules, **opened.channels()}


def _gemma3(opened: Opened) -> _Read:
    opened.activation("gelu")
    sizes, edge, merge = opened.tower(), opened.size("image_size"), opened.size("projector.scale_factor", 4)
    vision = {**sizes, "image_size": edge, "layer_norm_eps": opened.epsilon(), "vision_use_head": False}
    beside = {"mm_tokens_per_image": (edge // sizes["patch_size"] // merge) ** 2}
    return vision, beside, {"merge_size": merge, "tile_size": edge, **opened.channels()}


def _gemma4(opened: Opened) -> _Read:
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
    return vision, {}, {"merge_size": merge, "max_pixels": 280 * (sizes["patch_size"] * merge) ** 2}


def _idefics3(opened: Opened) -> _Read:
    opened.activation("gelu")
    edge, merge = opened.size("image_size"), opened.size("projector.scale_factor", 2)
    vision = {**opened.tower(), "image_size": edge, "layer_norm_eps": opened.epsilon()}
    longest = opened.size("preproc_image_size", 4 * edge)
    rules = {"merge_size": merge, "tile_size": edge, "longest_edge": longest, "cuts_tiles": True}
    return vision, {"scale_factor": merge}, {**rules, **opened.channels()}


@dataclass(frozen=True, slots=True)
class Projector:
    """A kind of mmproj file. wholes: model_type of the whole, by the architecture of the text model's file.

    filter: by which images are resized. read: what it says.
    """

    wholes: Mapping[str, str]
    filter: str
    read: Callable[[Opened], _Read]


PROJECTORS = {  # by what files call them
    "qwen3vl_merger": Projector(
        {"qwen35": "qwen3_5", "qwen35moe": "qwen3_5_moe", "qwen3vl": "qwen3_vl", "qwen3vlmoe": "qwen3_vl_moe"},
        *("bicubic", _qwen3),
    ),
    "qwen2.5vl_merger": Projector({"qwen2vl": "qwen2_5_vl"}, "bicubic", _qwen2_5),
    "pixtral": Projector({"mistral3": "mistral3", "llama": "mistral3"}, "bicubic", _pixtral),
    "lfm2": Projector({"lfm2": "lfm2_vl"}, "bilinear", _lfm2),
    "gemma3": Projector({"gemma3": "gemma3"}, "bilinear", _gemma3),
    "idefics3": Projector({"llama": "smolvlm"}, "lanczos", _idefics3),
    "gemma4v": Projector({"gemma4": "gemma4"}, "bicubic", _gemma4),
}


def _short(number: float) -> float:
    """What was meant: 0.1, where a file has that in 32 bits."""
    return float(str(np.float32(number)))
