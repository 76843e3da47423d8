"""Tiny models that see as llama.cpp's converters would write them (`conversion/` there), in two files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from reader_edge_runtime.arrays import Array
from tests.export.gguf_models import GGUF_MODELS, write_model
from tests.export.gguf_values import Values
from tests.export.images.seeing_models import EYES, IMAGE_ID, build_seeing_model
from tests.gguf_files import F32, write_gguf
from tests.seeing_engine import add_tokens

_PLACEHOLDERS = {
    **{"mistral3": "[IMG]", "lfm2_vl": "<image>", "gemma3": "<image_soft_token>", "gemma4": "<|image|>"},
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl"), "<|image_pad|>"),
    "smolvlm": "<image>",
}
# Of files of their text models, which those of texts alone do not have.
_ARCHITECTURES = {"qwen3_vl": "qwen3vl", "qwen3_vl_moe": "qwen3vlmoe", "qwen2_5_vl": "qwen2vl"}
_OTHER_TOKENS = ("[IMG_BREAK]", "[IMG_END]", "<start_of_image>", "<end_of_image>", "<|image>", "<image|>")
_MERGER = {
    **{"linear_fc1": "mm.0", "linear_fc2": "mm.2", "norm": "v.post_ln"},
    **{"0": "mm.0", "2": "mm.2", "ln_q": "v.post_ln"},
}
_OF_TEXT = ("model.text_model.", "model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.")
_SCALARS = ("input_max", "input_min", "output_max", "output_min")
_OWN_KEYS = {  # of text models that files can tell from others of the family
    "gemma4-whole": {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "use_double_wide_mlp": False}
}

IN_TWO_FILES = [name for name in EYES if name.partition("-")[0] in _PLACEHOLDERS]


def build_files(name: str, folder: Path, kind: gguf.GGMLQuantizationType = F32) -> tuple[Path, Path]:
    """The folder of a tiny model of EYES, and the GGUF file of its text model, beside whose mmproj file it lies.

    kind: of the matrices of both files.
    """
    whole = folder / "whole"
    placeholder = _PLACEHOLDERS[name.partition("-")[0]]
    build_seeing_model(name, whole, **GGUF_MODELS[EYES[name].text][1], **_OWN_KEYS.get(name, {}))
    for place in (whole, whole / "text"):
        last = add_tokens(place / "tokenizer.json", _OTHER_TOKENS)
        fillers = tuple(f"<unused{number}>" for number in range(last + 1, IMAGE_ID))
        assert add_tokens(place / "tokenizer.json", (*fillers, placeholder)) == IMAGE_ID
    text = AutoModelForCausalLM.from_pretrained(whole / "text").eval()
    files = folder / "files"
    files.mkdir()
    write_mmproj(whole, files / "mmproj.gguf", kind)
    architecture, own = _ARCHITECTURES.get(name, ""), {"tokenizer.ggml.padding_token_id": text.config.pad_token_id}
    if architecture:
        own[f"{architecture}.rope.dimension_sections"] = [*EYES[name].rope["mrope_section"], 0]
    if "3" in architecture:
        own[f"{architecture}.n_deepstack_layers"] = 2
    return whole, write_model(text, files / "model.gguf", kind, own, architecture=architecture)


def write_mmproj(folder: Path, path: Path, kind: gguf.GGMLQuantizationType = F32, values: Values | None = None) -> Path:
    """Write what sees images of a folder. kind: of its matrices. values: added, or in place; None leaves one out."""
    config = AutoConfig.from_pretrained(folder)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 4)
    tensors: dict[str, Array] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if "language_model" not in name and not name.startswith(_OF_TEXT):
            tensors |= _tensors(config, names, name, weight)
    vision = config.vision_config
    own = {
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.vision.projection_dim": config.text_config.hidden_size,
        "clip.vision.image_size": 224,
        "clip.vision.patch_size": vision.patch_size,
        "clip.vision.embedding_length": vision.hidden_size,
        "clip.vision.feed_forward_length": vision.intermediate_size,
        "clip.vision.block_count": vision.num_hidden_layers,
        "clip.vision.attention.head_count": vision.num_attention_heads,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
        **_VALUES[config.model_type](config),
    }
    matrices = [each for each, weight in tensors.items() if weight.ndim == 2 and weight.shape[1] % 32 == 0]
    return write_gguf(path, "clip", {**own, **(values or {})}, tensors, dict.fromkeys(matrices, kind))


def _tensors(config: Any, names: gguf.TensorNameMap, name: str, weight: Array) -> dict[str, Array]:
    """What stands in the file for one of the folder."""
    name = name.removeprefix("model.")
    if name.startswith("visual.merger."):
        module, ending = name.split(".")[-2:]
        return {f"{_MERGER[module]}.{ending}": weight}
    if name.startswith("visual.deepstack_merger_list."):
        number, module, ending = name.split(".")[2:]
        layer = config.vision_config.deepstack_visual_indexes[int(number)]
        return {f"v.deepstack.{layer}.{module.removeprefix('linear_')}.{ending}": weight}
    if config.model_type == "qwen2_5_vl" and ".attn.qkv." in name:
        layer, ending = name.split(".")[2], name.split(".")[-1]
        return {
            f"v.blk.{layer}.attn_{part}.{ending}": each for part, each in zip("qkv", np.split(weight, 3), strict=True)
        }
    if weight.ndim == 5:
        return {f"v.patch_embd.weight{end}": weight[:, :, n].copy() for n, end in enumerate(("", ".1"))}
    if config.model_type == "mistral3" and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = weight.reshape(config.vision_config.num_attention_heads, 2, -1, weight.shape[1])
        weight = heads.swapaxes(1, 2).reshape(weight.shape)
    if name.endswith(("patch_embedding.weight", "input_proj.weight")) and weight.ndim == 2:
        side = config.vision_config.patch_size
        weight = weight.reshape(len(weight), side, side, 3).transpose(0, 3, 1, 2)
    if name.endswith("soft_emb_norm.weight"):
        weight = weight + 1
    name = name.replace("mm_input_projection_weight", "mm_input_projection.weight")
    name = name.replace("position_embedding_table", "position_embedding_table.weight")
    if config.model_type == "gemma4":
        name = name.replace("vision_tower.encoder.", "vision_model.model.").replace(".linear.weight", ".weight")
    elif "vision_tower.vision_model" not in name:
        name = name.replace("vision_tower.encoder", "vision_tower.vision_model.encoder")
        name = name.replace("vision_tower.embeddings", "vision_tower.vision_model.embeddings")
        name = name.replace("vision_tower.post_layernorm", "vision_tower.vision_model.post_layernorm")
    endings = (".weight", ".bias", *(f".{scalar}" for scalar in _SCALARS))
    stored = names.get_name(name, endings) or names.get_name(f"model.{name}", endings)
    assert stored is not None, name
    return {stored: np.ascontiguousarray(weight.reshape(weight.shape or (1,)))}


def _qwen(config: Any) -> Values:
    vision = config.vision_config
    return {
        "clip.projector_type": "qwen3vl_merger",
        "clip.use_gelu": True,
        "clip.vision.image_size": int(vision.num_position_embeddings**0.5 * vision.patch_size),
        "clip.vision.spatial_merge_size": vision.spatial_merge_size,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.is_deepstack_layers": [
            layer in getattr(vision, "deepstack_visual_indexes", ()) for layer in range(vision.depth)
        ],
    }


def _qwen2_5(config: Any) -> Values:
    vision = config.vision_config
    return {
        "clip.projector_type": "qwen2.5vl_merger",
        "clip.use_silu": True,
        "clip.vision.image_size": 560,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.n_wa_pattern": vision.fullatt_block_indexes[0] + 1,
        "clip.vision.window_size": vision.window_size,  # which no converter writes; it is 112 for all
    }


def _smolvlm(config: Any) -> Values:
    return {
        "clip.projector_type": "idefics3",
        "clip.use_gelu": True,
        "clip.vision.image_size": config.vision_config.image_size,
        "clip.vision.preproc_image_size": 2 * config.vision_config.image_size,
        "clip.vision.projector.scale_factor": config.scale_factor,
        "clip.vision.attention.layer_norm_epsilon": config.vision_config.layer_norm_eps,
    }


def _pixtral(config: Any) -> Values:
    return {
        "clip.projector_type": "pixtral",
        "clip.use_gelu": config.vision_config.hidden_act == "gelu",
        "clip.use_silu": config.vision_config.hidden_act == "silu",
        "clip.vision.image_size": config.vision_config.image_size,
        "clip.vision.spatial_merge_size": config.spatial_merge_size,
        "clip.vision.attention.layer_norm_epsilon": 1e-5,
    }


def _lfm2(config: Any) -> Values:
    return {
        "clip.projector_type": "lfm2",
        "clip.use_gelu": True,
        "clip.vision.image_size": 256,
        "clip.vision.projector.scale_factor": config.downsample_factor,
        "clip.vision.attention.layer_norm_epsilon": config.vision_config.layer_norm_eps,
    }


def _gemma3(config: Any) -> Values:
    vision = config.vision_config
    side = vision.image_size // vision.patch_size
    return {
        "clip.projector_type": "gemma3",
        "clip.use_gelu": True,
        "clip.vision.image_size": vision.image_size,
        "clip.vision.projector.scale_factor": int(side // config.mm_tokens_per_image**0.5),
        "clip.vision.attention.layer_norm_epsilon": vision.layer_norm_eps,
    }


def _gemma4(config: Any) -> Values:
    """Of a model that hears too."""
    return {
        "clip.vision.projector_type": "gemma4v",
        "clip.has_audio_encoder": True,
        "clip.audio.projector_type": "gemma4a",
        "clip.vision.image_mean": [0.0, 0.0, 0.0],
        "clip.vision.image_std": [1.0, 1.0, 1.0],
        "clip.vision.attention.layer_norm_epsilon": config.vision_config.rms_norm_eps,
    }


_VALUES: dict[str, Callable[[Any], Values]] = {
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe"), _qwen),
    **{"qwen2_5_vl": _qwen2_5, "smolvlm": _smolvlm},
    **{"mistral3": _pixtral, "lfm2_vl": _lfm2, "gemma3": _gemma3, "gemma4": _gemma4},
}
