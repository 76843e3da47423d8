"""Tiny models of images and texts with random weights, and what transformers' whole model says of two images."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.package.package_parts import feature_names
from tests.tiny_models import build_tiny_model, build_tiny_tokenizer

IMAGE_ID, MAX_CONTEXT = 319, 512
GRIDS = ((2, 3), (3, 1))  # blocks of the two images
Inputs = dict[str, npt.NDArray[Any]]

QWEN_VISION = {
    **{"depth": 2, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "out_hidden_size": 64},
    **{"num_position_embeddings": 64, "patch_size": 4},
}

_QWEN2_5_VISION = {
    **{name: value for name, value in QWEN_VISION.items() if name != "num_position_embeddings"},
    **{"window_size": 16, "fullatt_block_indexes": [1], "in_chans": 3, "spatial_patch_size": 4},  # as makers write it
}

PIXTRAL_VISION = {
    **{"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "image_size": 56, "patch_size": 4, "head_dim": 16},
}
_SIGLIP = {
    **{"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4},
    "vision_use_head": False,
}
SIGLIP2_VISION = {**_SIGLIP, "model_type": "siglip2_vision_model", "num_patches": 64}
SIGLIP_VISION = {**_SIGLIP, "model_type": "siglip_vision_model", "image_size": 24}
GEMMA4_VISION = {
    **{"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4},
    **{"num_key_value_heads": 2, "head_dim": 16, "position_embedding_size": 64, "standardize": True},
    "use_clipped_linears": True,
}
_SMOLVLM_VISION = {
    **{"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"size": {"longest_edge": 48}, "use_base_siglip": False, "tie_word_embeddings": False},  # as makers write
}
SMOLVLM_VISION = {**_SMOLVLM_VISION, "image_size": 24, "patch_size": 4, "max_image_size": {"longest_edge": 24}}
IDEFICS3_VISION = {**_SMOLVLM_VISION, "image_size": 50, "patch_size": 2}  # of 25 patches transformers sees some twice
_QWEN_PROCESSOR = {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}}


@dataclass(frozen=True, slots=True)
class Eyes:
    """text: the tiny text model's type; text_keys: what its config changes. keys: of the whole's config, and those that
    its text_config has otherwise: whole_text, rope.

    processor: what the folder has for its images.
    inputs: of the graph, and of the reference, of drawn pixels of a grid of blocks. kinds: what transformers calls the
    input that says which tokens are of images, where its forward takes one.
    """

    text: str
    keys: dict[str, Any]
    processor: dict[str, Any]
    inputs: Callable[[int, int, int], tuple[Inputs, dict[str, Any]]]
    num_axes: int = 1
    kinds: str = ""
    sees_whole_image: str = "none"
    text_keys: dict[str, Any] = field(default_factory=dict)
    whole_text: dict[str, Any] = field(default_factory=dict)
    rope: dict[str, Any] = field(default_factory=dict)
    num_deepstack: int = 0


def _qwen_inputs(rows: int, columns: int, seed: int) -> tuple[Inputs, dict[str, Any]]:
    from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

    grid = torch.tensor([[1, 2 * rows, 2 * columns]])
    pixels = torch.randn(4 * rows * columns, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(seed))
    indices, weights = get_vision_interpolation_indices_and_weights(grid, 8, "bilinear", True, 2)
    inputs = {"patches": pixels, "positions": get_vision_position_ids(grid, 2)}
    inputs |= {"interp_indices": indices, "interp_weights": weights}
    arrays = {name: value.numpy() for name, value in inputs.items()}
    return arrays, {"pixel_values": pixels, "image_grid_thw": grid}


def _qwen2_5_inputs(rows: int, columns: int, seed: int) -> tuple[Inputs, dict[str, Any]]:
    inputs, pixels = _qwen_inputs(rows, columns, seed)
    own = {name: value.numpy() for name, value in window_inputs(pixels["image_grid_thw"], 16, 4).items()}
    return {"patches": inputs["patches"], "positions": inputs["positions"], **own}, pixels


def window_inputs(grid: torch.Tensor, window_size: int, patch_size: int) -> dict[str, torch.Tensor]:
    """Which blocks and patches of a grid stand in which window, as transformers has it."""
    from transformers.vision_utils import get_vision_window_index

    order, ends = get_vision_window_index(grid, 2, window_size, patch_size)
    windows = [torch.arange(start, end) for start, end in pairwise(ends.tolist()) if start < end]
    padded = torch.nn.utils.rnn.pad_sequence(windows, batch_first=True, padding_value=-1)
    return {"window_index": order, "windows": padded}


def _pixtral_inputs(rows: int, columns: int, seed: int) -> tuple[Inputs, dict[str, Any]]:
    height, width = 2 * rows, 2 * columns
    pixels = torch.randn(1, 3, 4 * height, 4 * width, generator=torch.Generator().manual_seed(seed))
    patches = pixels[0].reshape(3, height, 4, width, 4).permute(1, 3, 0, 2, 4).reshape(height * width, -1)
    order = block_order(height, width, 2)
    positions = np.stack(np.divmod(np.arange(height * width), width), -1)
    inputs = {"patches": patches.numpy()[order], "positions": positions[order]}
    return inputs, {"pixel_values": pixels, "image_sizes": torch.tensor([[4 * height, 4 * width]])}


def _siglip2_inputs(rows: int, columns: int, seed: int) -> tuple[Inputs, dict[str, Any]]:
    height, width = 2 * rows, 2 * columns
    patches = torch.randn(height * width, 48, generator=torch.Generator().manual_seed(seed))
    order = block_order(height, width, 2)
    resize = torch.nn.functional.interpolate
    tables = torch.eye(64).reshape(1, 64, 8, 8)  # each has one position
    weights = resize(tables, (height, width), mode="bilinear", antialias=True).reshape(64, -1).T
    inputs = {"patches": patches.numpy()[order], "position_weights": weights.numpy()[order]}
    kept = torch.ones(1, height * width, dtype=torch.int32)
    shape = torch.tensor([[height, width]])
    return inputs, {"pixel_values": patches[None], "pixel_attention_mask": kept, "spatial_shapes": shape}


def _siglip_inputs(rows: int, columns: int, seed: int) -> tuple[Inputs, dict[str, Any]]:
    pixels = torch.randn(1, 3, 24, 24, generator=torch.Generator().manual_seed(seed))
    return {"pixels": pixels.numpy()}, {"pixel_values": pixels}


def _tile_inputs(side: int) -> Callable[[int, int, int], tuple[Inputs, dict[str, Any]]]:
    def inputs(rows: int, columns: int, seed: int) -> tuple[Inputs, dict[str, Any]]:
        pixels = torch.randn(1, 1, 3, side, side, generator=torch.Generator().manual_seed(seed))
        return {"pixels": pixels[0].numpy()}, {"pixel_values": pixels}

    return inputs


def _gemma4_inputs(rows: int, columns: int, seed: int) -> tuple[Inputs, dict[str, Any]]:
    height, width = 3 * rows, 3 * columns
    patches = torch.rand(height * width, 48, generator=torch.Generator().manual_seed(seed))
    positions = np.stack(np.divmod(np.arange(height * width), width)[::-1], -1)
    order, num_missing = block_order(height, width, 3), 9 * 9 - height * width
    padded = torch.nn.functional.pad(patches, (0, 0, 0, num_missing))
    places = torch.nn.functional.pad(torch.tensor(positions), (0, 0, 0, num_missing), value=-1)
    inputs = {"patches": patches.numpy()[order], "positions": positions[order]}
    return inputs, {"pixel_values": padded[None], "image_position_ids": places[None]}


def block_order(height: int, width: int, side: int) -> npt.NDArray[np.int64]:
    """Which patch of a grid, row by row, stands where, block by block."""
    numbers = np.arange(height * width).reshape(height // side, side, width // side, side)
    return numbers.transpose(0, 2, 1, 3).reshape(-1)


_QWEN = Eyes("qwen3_5_text", {"vision_config": QWEN_VISION}, _QWEN_PROCESSOR, _qwen_inputs, 3, "mm_token_type_ids")
EYES = {  # by model_type of the whole, and what is behind a "-"
    "qwen3_5": _QWEN,
    "qwen3_5_moe": replace(_QWEN, text="qwen3_5_moe_text"),
    "qwen3_vl": replace(
        _QWEN,
        text="qwen3",
        keys={"vision_config": {**QWEN_VISION, "deepstack_visual_indexes": [0, 1]}},
        whole_text={"model_type": "qwen3_vl_text"},
        rope={"mrope_section": [6, 5, 5], "mrope_interleaved": True},
        num_deepstack=2,
    ),
    "qwen3_vl_moe": replace(
        _QWEN,
        text="qwen3_moe",
        keys={"vision_config": {**QWEN_VISION, "deepstack_visual_indexes": [1]}},
        whole_text={"model_type": "qwen3_vl_moe_text"},
        rope={"mrope_section": [6, 5, 5]},
        num_deepstack=1,
    ),
    "qwen2_5_vl": replace(
        _QWEN,
        text="qwen2",
        keys={"vision_config": _QWEN2_5_VISION},
        inputs=_qwen2_5_inputs,
        whole_text={"model_type": "qwen2_5_vl_text"},
        rope={"mrope_section": [2, 3, 3]},
    ),
    "mistral3": Eyes(
        "ministral3",
        {"vision_config": PIXTRAL_VISION, "image_token_index": IMAGE_ID, "multimodal_projector_bias": True},
        {"size": {"longest_edge": 56}},
        _pixtral_inputs,
    ),
    "lfm2_vl": Eyes(
        "lfm2",
        {"vision_config": SIGLIP2_VISION, "projector_hidden_size": 48},
        {"tile_size": 16, "encoder_patch_size": 4, "min_image_tokens": 4, "max_image_tokens": 16},
        _siglip2_inputs,
    ),
    "gemma3": Eyes(
        "gemma3_text",
        {"vision_config": SIGLIP_VISION, "image_token_index": IMAGE_ID, "mm_tokens_per_image": 4},
        {"size": {"height": 24, "width": 24}},
        _siglip_inputs,
        kinds="token_type_ids",
        sees_whole_image="all",
    ),
    "gemma4": Eyes(
        "gemma4_text",
        {"vision_config": GEMMA4_VISION, "video_token_id": 301, "audio_token_id": 302},
        {"max_soft_tokens": 70, "patch_size": 4},
        _gemma4_inputs,
        kinds="mm_token_type_ids",
    ),
}
_OF_SMOLVLM = {"pixel_shuffle_factor": 3, "qk_layer_norms": False, "use_resampler": False, "perceiver_config": {}}
EYES["smolvlm"] = Eyes(
    "llama",
    {"vision_config": SMOLVLM_VISION, "scale_factor": 3},
    {"size": {"longest_edge": 48}, "max_image_size": {"longest_edge": 24}},
    _tile_inputs(24),
    text_keys=_OF_SMOLVLM,
)
EYES["idefics3"] = Eyes(
    "llama",
    {"vision_config": IDEFICS3_VISION, "scale_factor": 25},
    {"size": {"longest_edge": 100}, "max_image_size": {"longest_edge": 50}},
    _tile_inputs(50),
)
EYES["gemma4-whole"] = replace(
    EYES["gemma4"], text_keys={"use_bidirectional_attention": "vision"}, sees_whole_image="sliding"
)

_LONG = ("qwen3_5_moe", "qwen3_vl_moe", "idefics3")  # whose eyes are those of others
KINDS = [pytest.param(name, marks=pytest.mark.long) if name in _LONG else name for name in EYES]  # of tests


def build_seeing_model(name: str, folder: Path, **text_keys: Any) -> Path:
    """Write a model around a tiny text model, as transformers writes it, and what stands for a processor's config.

    text_keys: of the text model's config, changed besides.
    """
    eyes = EYES[name]
    keys = {"max_position_embeddings": MAX_CONTEXT, **eyes.text_keys, **text_keys}
    text = AutoModelForCausalLM.from_pretrained(build_tiny_model(eyes.text, folder / "text", **keys))
    own = {**text.config.to_dict(), **eyes.whole_text}
    config = AutoConfig.for_model(
        name.partition("-")[0],
        text_config=own | ({"rope_parameters": own["rope_parameters"] | eyes.rope} if eyes.rope else {}),
        tie_word_embeddings=text.config.tie_word_embeddings,
        **{"image_token_id": IMAGE_ID, **eyes.keys},
    )
    torch.manual_seed(1)
    whole = AutoModelForImageTextToText.from_config(config)
    with torch.no_grad():
        for part, parameter in whole.named_parameters():
            if "language_model" not in part and "text_model" not in part:
                parameter.add_(0.2 * torch.randn_like(parameter))
        for part, buffer in whole.named_buffers():
            if part.endswith(("_min", "_max")):  # between which Gemma 4 clips
                buffer.fill_(1.5 if part.endswith("_max") else -1.5)
            if "std_" in part:
                buffer.copy_(0.5 + torch.rand_like(buffer))
    inner = whole.model.text_model if hasattr(whole.model, "text_model") else whole.model.language_model
    inner.load_state_dict(text.model.state_dict())
    whole.lm_head.load_state_dict(text.lm_head.state_dict())
    whole.save_pretrained(folder)
    build_tiny_tokenizer(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(eyes.processor))
    return folder


class Reference:
    """transformers' whole model of a folder, and two images."""

    def __init__(self, name: str, folder: Path) -> None:
        self.eyes = EYES[name]
        self.model: Any = AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager").eval()
        drawn = [self.eyes.inputs(*grid, seed) for seed, grid in enumerate(GRIDS)]
        self.inputs = [inputs for inputs, _ in drawn]
        self._pixels = {key: _padded([pixels[key] for _, pixels in drawn]) for key in drawn[0][1]}

    def features(self) -> list[Float32Array]:
        """Of each image (L, E), with what deepstack has behind."""
        with torch.no_grad():
            found = self.model.model.get_image_features(**self._pixels)
        rows = [each.reshape(-1, each.shape[-1]) for each in found.pooler_output]
        by_layer = getattr(found, "deepstack_features", None) or []
        return [torch.cat(each, -1).numpy() for each in zip(rows, *by_layer, strict=True)]

    def logits(self, token_ids: list[int]) -> Float32Array:
        """(N, V) of a text with both images, or with none."""
        ids = torch.tensor([token_ids])
        kinds = (ids == IMAGE_ID).long()
        pixels = {**self._pixels, **({self.eyes.kinds: kinds} if self.eyes.kinds else {})} if kinds.any() else {}
        self.model.model.rope_deltas = None
        with torch.no_grad():
            logits: Float32Array = self.model(input_ids=ids, use_cache=False, **pixels).logits[0].numpy()
        return logits


def fed(rows: Float32Array, num_deepstack: int) -> dict[str, Float32Array]:
    """The text graph's inputs of rows of features."""
    return dict(zip(feature_names(num_deepstack), np.split(rows, 1 + num_deepstack, 1), strict=True))


def _padded(tensors: list[torch.Tensor]) -> torch.Tensor:
    """As one, with zeros behind those that are smaller."""
    most = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors), strict=True)]
    missing = [[most[axis] - tensor.shape[1 + axis] for axis in range(len(most))] for tensor in tensors]
    pads = [[pad for each in reversed(own) for pad in (0, each)] for own in missing]
    return torch.cat([torch.nn.functional.pad(tensor, pad) for tensor, pad in zip(tensors, pads, strict=True)])


def positions_of(token_ids: list[int], num_axes: int) -> tuple[npt.NDArray[np.int64], int]:
    """Rotary positions (3, N) of a text with the images of GRIDS, and by how much they are behind afterwards."""
    rows: list[list[int]] = []
    place, grids = 0, iter(GRIDS)
    while len(rows) < len(token_ids):
        if token_ids[len(rows)] == IMAGE_ID and num_axes == 3:
            height, width = next(grids)
            rows += [[place, place + y, place + x] for y in range(height) for x in range(width)]
            place += max(height, width)
        else:
            rows.append([place] * 3)
            place += 1
    return np.array(rows, np.int64).T, place - len(token_ids)
