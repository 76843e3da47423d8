"""Vision towers and their projectors, each as a module of one image, with whatever depends on its shape as an input.

A family's patches come block by block (a block becomes a token), so that no graph needs height or width.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.models.gemma3.modeling_gemma3 import Gemma3MultiModalProjector
from transformers.models.gemma4.modeling_gemma4 import Gemma4MultimodalEmbedder
from transformers.models.idefics3.modeling_idefics3 import Idefics3Connector
from transformers.models.lfm2_vl.modeling_lfm2_vl import Lfm2VlMultiModalProjector
from transformers.models.mistral3.modeling_mistral3 import Mistral3MultiModalProjector

from reader_edge_export.trace.markers import Outputs, mark

# transformers hands packed queries over whole where a name has "flash" in it, and else splits them by Python's numbers,
# which no tracer follows.
ATTENTION_NAME = "reader_edge_flash_image"
IMAGE_ATTENTION = "ImageAttention"  # a marker: (q, k, v) (1, P, H * D) -> output, each patch sees all; of W windows
# (q, k, v) (W, S, H * D), is_patch int32 (W, S) -> output, each patch sees those of its window


def image_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: q, k, v (1, H, P, D) -> (1, P, H, D); of one image.

    cu_seq_lens_q: the patches of each window (W, S), see `images.patches` of the runtime; with fewer axes the image is
    one. A marker in a trace, and else computed.
    """
    windows = cu_seq_lens_q if cu_seq_lens_q is not None and cu_seq_lens_q.ndim == 2 else None
    num_heads, head_dim = int(query.shape[1]), int(query.shape[3])
    key, value = (each.repeat_interleave(num_heads // each.shape[1], 1) for each in (key, value))
    scale = head_dim**-0.5 if scaling is None else scaling
    if not torch.onnx.is_in_onnx_export():
        mask = None if windows is None else _is_in_window(windows)
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=scale)
        return attended.transpose(1, 2), None
    rows = [each.transpose(1, 2).reshape(1, -1, num_heads * head_dim) for each in (query, key, value)]
    sizes = {"num_heads_i": num_heads, "scale_f": scale}
    if windows is None:
        (output,) = mark(IMAGE_ATTENTION, Outputs.like(0), *rows, **sizes)
    else:
        is_patch, rows = windows >= 0, [each[0][windows.clamp(min=0)] for each in rows]
        (output,) = mark(IMAGE_ATTENTION, Outputs.like(0), *rows, is_patch.int(), **sizes)
        output = output[is_patch]  # in their order
    return output.reshape(1, -1, num_heads, head_dim), None


def _is_in_window(windows: torch.Tensor) -> torch.Tensor:
    """Which patches see which (P, P)."""
    number = torch.arange(len(windows))[:, None].expand_as(windows)[windows >= 0]
    return number[:, None] == number


AttentionInterface.register(ATTENTION_NAME, image_attention)
AttentionMaskInterface.register(ATTENTION_NAME, lambda *args, **kwargs: None)


class Tower(PreTrainedModel):
    """A tower with its projector. Its modules have the names that a folder's tensors have.

    names: of its inputs. axes: of those whose first is not P. forward: of them -> features (L, E).
    """

    names: ClassVar[Sequence[str]]
    axes: ClassVar[Mapping[str, dict[int, str]]] = {}
    base_model_prefix = ""

    def __init__(self, config: PretrainedConfig) -> None:
        """config: of the whole model."""
        super().__init__(config)

    @property
    def width(self) -> int:
        """E."""
        return int(self.config.text_config.hidden_size)

    @property
    def num_deepstack(self) -> int:
        """See `ImagesPart`: features of so many more layers stand behind the last one's, which have E numbers each."""
        return 0

    @property
    def vision(self) -> Any:
        """The config of the tower alone."""
        return self.config.vision_config

    @abstractmethod
    def example(self, num_rows: int, num_columns: int) -> Mapping[str, torch.Tensor]:
        """Inputs of a drawn image of so many blocks, by name."""

    def make_plain(self) -> None:
        """Once small weights are here, replace what would not be one matrix."""


class QwenTower(Tower):
    """Of Qwen 3.5 and Qwen3-VL: positions from a table, interpolated, and of rows and columns by rotation."""

    names = ("patches", "positions", "interp_indices", "interp_weights")

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.visual: Any = AutoModel.from_config(config.vision_config)

    @property
    def width(self) -> int:
        return int(self.vision.out_hidden_size)

    @property
    def num_deepstack(self) -> int:
        return len(getattr(self.visual, "deepstack_merger_list", ()))

    def make_plain(self) -> None:
        take_patches(self.visual.patch_embed, self.visual.patch_embed.proj)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        patches, positions, indices, weights = inputs
        seen = self._seen(patches, positions, interp_indices=indices, interp_weights=weights)
        features: torch.Tensor = seen.pooler_output
        return torch.cat([features, *seen.deepstack_features], -1) if self.num_deepstack else features

    def _seen(self, patches: torch.Tensor, positions: torch.Tensor, **by_shape: torch.Tensor | int) -> Any:
        """by_shape: what else depends on the image's."""
        return self.visual(
            patches,
            grid_thw=None,
            position_ids=positions,
            cu_seqlens=torch.zeros(2, dtype=torch.int32),  # which the attention does not read
            max_seqlen=1,
            return_dict=True,
            **by_shape,
        )

    def example(self, num_rows: int, num_columns: int) -> Mapping[str, torch.Tensor]:
        inputs = self._patches(num_rows * num_columns)
        num_patches = len(inputs["patches"])
        indices = torch.arange(4 * num_patches).reshape(num_patches, 4) % self.vision.num_position_embeddings
        return {**inputs, "interp_indices": indices, "interp_weights": drawn(num_patches, 4).abs()}

    def _patches(self, num_blocks: int) -> Mapping[str, torch.Tensor]:
        num_patches = num_blocks * self.vision.spatial_merge_size**2
        size = self.vision.in_channels * self.vision.temporal_patch_size * self.vision.patch_size**2
        return {"patches": drawn(num_patches, size), "positions": numbered(num_patches)}


class WindowedQwenTower(QwenTower):
    """Of Qwen2.5-VL: positions of rows and columns by rotation; most layers see windows."""

    names = ("patches", "positions", "window_index", "windows")
    axes: ClassVar[Mapping[str, dict[int, str]]] = {"window_index": {0: "L"}, "windows": {0: "W", 1: "S"}}

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        patches, positions, order, windows = inputs
        seen = self._seen(patches, positions, window_index=order, cu_window_seqlens=windows, max_window_seqlen=1)
        features: torch.Tensor = seen.pooler_output
        return features

    def example(self, num_rows: int, num_columns: int) -> Mapping[str, torch.Tensor]:
        """Windows of a row of blocks, of which the last has one less."""
        num_blocks, merged = num_rows * num_columns - 1, self.vision.spatial_merge_size**2
        windows = torch.arange(num_rows * num_columns * merged).reshape(num_rows, -1)
        windows = windows.where(windows < num_blocks * merged, -1)
        return {**self._patches(num_blocks), "window_index": torch.arange(num_blocks).flip(0), "windows": windows}


class PixtralTower(Tower):
    """Of Mistral 3: positions of rows and columns by rotation."""

    names = ("patches", "positions")

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.vision_tower: Any = AutoModel.from_config(config.vision_config)
        self.multi_modal_projector: Any = Mistral3MultiModalProjector(config)

    def make_plain(self) -> None:
        take_patches(self.vision_tower.patch_conv, self.vision_tower.patch_conv)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        patches, positions = inputs
        tower, projector = self.vision_tower, self.multi_modal_projector
        hidden = tower.ln_pre(tower.patch_conv(patches)[None])
        angles = tower.patch_positional_embedding(hidden, positions)
        hidden = tower.transformer(hidden, attention_mask=None, position_embeddings=angles).last_hidden_state[0]
        blocks = projector.norm(hidden).reshape(-1, self.config.spatial_merge_size**2, self.vision.hidden_size)
        merged = projector.patch_merger.merging_layer(blocks.transpose(1, 2).flatten(1))  # as `unfold` orders them
        features: torch.Tensor = projector.linear_2(projector.act(projector.linear_1(merged)))
        return features

    def example(self, num_rows: int, num_columns: int) -> Mapping[str, torch.Tensor]:
        num_patches = num_rows * num_columns * self.config.spatial_merge_size**2
        patches = drawn(num_patches, self.vision.num_channels * self.vision.patch_size**2)
        return {"patches": patches, "positions": numbered(num_patches)}


class TileTower(Tower):
    """Of images or tiles of one size."""

    names = ("pixels",)
    axes: ClassVar[Mapping[str, dict[int, str]]] = {"pixels": {}}

    def example(self, num_rows: int, num_columns: int) -> Mapping[str, torch.Tensor]:
        side = self.vision.image_size
        return {"pixels": drawn(1, self.vision.num_channels, side, side)}


class SiglipTower(TileTower):
    """Of Gemma 3: images of one size, whose tokens are means of their patches."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.vision_tower: Any = AutoModel.from_config(config.vision_config)
        self.multi_modal_projector: Any = Gemma3MultiModalProjector(config)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        (pixels,) = inputs
        tower = self.vision_tower
        hidden = tower.encoder(inputs_embeds=tower.embeddings(pixels), attention_mask=None).last_hidden_state
        features: torch.Tensor = self.multi_modal_projector(tower.post_layernorm(hidden))[0]
        return features


class Idefics3Tower(TileTower):
    """Of Idefics 3 and SmolVLM: tiles of one size; a token is a block of patches."""

    places: torch.Tensor  # of each patch, its row in the table of positions

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.vision_model: Any = AutoModel.from_config(config.vision_config)
        self.connector: Any = Idefics3Connector(config)

    def make_plain(self) -> None:
        """Rows and columns are those that transformers finds in fractions of a side, rounding included."""
        side = self.vision.image_size // self.vision.patch_size
        bounds = torch.arange(1 / side, 1.0, 1 / side)
        fractions = torch.arange(side, dtype=torch.float32) * (1.0 / torch.tensor(side))
        found = torch.bucketize(fractions.clamp(max=1.0 - 1e-6), bounds, right=True)
        self.places = (found[:, None] * side + found).flatten()

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        (pixels,) = inputs
        tower, merge = self.vision_model, self.config.scale_factor
        hidden = tower.embeddings.patch_embedding(pixels).flatten(2).transpose(1, 2)
        hidden = hidden + tower.embeddings.position_embedding(self.places)
        hidden = tower.post_layernorm(tower.encoder(hidden, attention_mask=None).last_hidden_state)
        side, size = math.isqrt(self.places.numel()) // merge, self.vision.hidden_size
        blocks = hidden.reshape(side, merge, side, merge, size).transpose(1, 2).reshape(side**2, merge**2 * size)
        features: torch.Tensor = self.connector.modality_projection(blocks)
        return features


class Siglip2Tower(Tower):
    """Of LFM2-VL: positions from a table, resized: one row of weights for each patch."""

    names = ("patches", "position_weights")

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.vision_tower: Any = AutoModel.from_config(config.vision_config)
        self.multi_modal_projector: Any = Lfm2VlMultiModalProjector(config)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        patches, weights = inputs
        tower, projector = self.vision_tower, self.multi_modal_projector
        table = tower.embeddings.position_embedding(torch.arange(self.vision.num_patches))
        hidden = tower.embeddings.patch_embedding(patches) + weights @ table
        hidden = tower.post_layernorm(tower.encoder(inputs_embeds=hidden[None], attention_mask=None).last_hidden_state)
        blocks = hidden.reshape(-1, projector.factor**2 * self.vision.hidden_size)
        blocks = projector.layer_norm(blocks) if projector.use_layer_norm else blocks
        features: torch.Tensor = projector.linear_2(projector.act(projector.linear_1(blocks)))
        return features

    def example(self, num_rows: int, num_columns: int) -> Mapping[str, torch.Tensor]:
        num_patches = num_rows * num_columns * self.config.downsample_factor**2
        patches = drawn(num_patches, self.vision.num_channels * self.vision.patch_size**2)
        weights = drawn(num_patches, self.vision.num_patches).softmax(-1)
        return {"patches": patches, "position_weights": weights}


class Gemma4Tower(Tower):
    """Of Gemma 4: positions of columns and rows from tables and by rotation; a token is the mean of its patches."""

    names = ("patches", "positions")

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.vision_tower: Any = AutoModel.from_config(config.vision_config)
        self.embed_vision: Any = Gemma4MultimodalEmbedder(config.vision_config, config.text_config)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        patches, positions = inputs
        tower, embedder = self.vision_tower, self.vision_tower.patch_embedder
        table = embedder.position_embedding_table
        hidden = embedder.input_proj(2 * (patches - 0.5)) + (table[0][positions[:, 0]] + table[1][positions[:, 1]])
        hidden = tower.encoder(hidden[None], None, pixel_position_ids=positions[None]).last_hidden_state[0]
        hidden = hidden.reshape(-1, self.vision.pooling_kernel_size**2, self.vision.hidden_size).mean(1)
        hidden = hidden * tower.pooler.root_hidden_size
        if self.vision.standardize:
            hidden = (hidden - tower.std_bias) * tower.std_scale
        features: torch.Tensor = self.embed_vision(inputs_embeds=hidden)
        return features

    def example(self, num_rows: int, num_columns: int) -> Mapping[str, torch.Tensor]:
        num_patches = num_rows * num_columns * self.vision.pooling_kernel_size**2
        positions = numbered(num_patches) % self.vision.position_embedding_size
        return {"patches": drawn(num_patches, 3 * self.vision.patch_size**2), "positions": positions}


def drawn(*sizes: int) -> torch.Tensor:
    """The same numbers each time."""
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(0))


def numbered(num_patches: int) -> torch.Tensor:
    """Positions (P, 2)."""
    return torch.arange(2 * num_patches).reshape(num_patches, 2) % 7


def take_patches(module: Any, convolution: Any) -> None:
    """Let a module that cuts an image into patches take patches, its strides being as long as its kernel."""
    weight = convolution.weight.flatten(1).T
    bias = 0.0 if convolution.bias is None else convolution.bias
    module.forward = lambda patches: patches @ weight + bias


TOWERS: Mapping[str, type[Tower]] = {  # by model_type of the whole
    "qwen3_5": QwenTower,
    "qwen3_5_moe": QwenTower,
    "qwen3_vl": QwenTower,
    "qwen3_vl_moe": QwenTower,
    "qwen2_5_vl": WindowedQwenTower,
    "mistral3": PixtralTower,
    "lfm2_vl": Siglip2Tower,
    "gemma3": SiglipTower,
    "gemma4": Gemma4Tower,
    "smolvlm": Idefics3Tower,
    "idefics3": Idefics3Tower,
}
