"""The tensors of an mmproj file as the parameters of a tower, with what converters did to them undone.

Shapes are compared on a tower without memory, so that no size in a header is allocated that the file does not fill.
"""

import re
from collections.abc import Iterator

import numpy as np
from transformers import PreTrainedModel

from reader_edge_export.blocks.block_type import BLOCK_TYPES, BlockType
from reader_edge_export.blocks.blocks import Blocks
from reader_edge_export.sources.blank_model import check_largest
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.placement import Piece
from reader_edge_export.sources.gguf.tensor_kinds import Tensor
from reader_edge_export.sources.gguf.weights import read_blocks
from reader_edge_export.sources.weights import Weights
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import GgufError

_LAYER = re.compile(r"(?:visual\.blocks|vision_tower\.(?:encoder|transformer)\.layers)\.(\d+)\.(.+)\.(\w+)")
_OF_LAYERS = {  # of Qwen, Pixtral, SigLIP and Gemma 4, no two of which call different things the same
    **{"norm1": "ln1", "norm2": "ln2", "attn.qkv": "attn_qkv", "attn.proj": "attn_out"},
    **{"mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down"},
    **{"attention_norm": "ln1", "ffn_norm": "ln2", "attention.o_proj": "attn_out"},
    **{f"attention.{part}_proj": f"attn_{part}" for part in "qkv"},
    **{f"feed_forward.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
    **{"layer_norm1": "ln1", "layer_norm2": "ln2", "self_attn.out_proj": "attn_out"},
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    **{"mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"},
    **{"input_layernorm": "ln1", "post_attention_layernorm": "attn_post_norm", "self_attn.o_proj": "attn_out"},
    **{"pre_feedforward_layernorm": "ln2", "post_feedforward_layernorm": "ffn_post_norm"},
    **{f"self_attn.{part}_norm": f"attn_{part}_norm" for part in "qk"},
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
}
_PATCHES = "v.patch_embd"
_DEEPSTACK = re.compile(r"visual\.deepstack_merger_list\.(\d+)\.(?:linear_)?(\w+)\.(\w+)")
_OTHERS = {
    **{"visual.patch_embed.proj": _PATCHES, "visual.pos_embed": "v.position_embd", "visual.merger.norm": "v.post_ln"},
    **{"visual.merger.linear_fc1": "mm.0", "visual.merger.linear_fc2": "mm.2"},
    **{"visual.merger.ln_q": "v.post_ln", "visual.merger.mlp.0": "mm.0", "visual.merger.mlp.2": "mm.2"},
    "connector.modality_projection.proj": "mm.model.fc",
    **{"vision_tower.patch_conv": _PATCHES, "vision_tower.ln_pre": "v.pre_ln"},
    **{f"multi_modal_projector.linear_{number}": f"mm.{number}" for number in (1, 2)},
    **{"multi_modal_projector.norm": "mm.input_norm", "multi_modal_projector.layer_norm": "mm.input_norm"},
    "multi_modal_projector.patch_merger.merging_layer": "mm.patch_merger",
    **{"vision_tower.embeddings.patch_embedding": _PATCHES, "vision_tower.post_layernorm": "v.post_ln"},
    "vision_tower.embeddings.position_embedding": "v.position_embd",
    "multi_modal_projector.mm_soft_emb_norm": "mm.soft_emb_norm",
    **{"vision_tower.patch_embedder.input_proj": _PATCHES, "embed_vision.embedding_projection": "mm.input_projection"},
}
_WHOLE = {  # names without an ending
    "multi_modal_projector.mm_input_projection_weight": "mm.input_projection.weight",
    "vision_tower.patch_embedder.position_embedding_table": "v.position_embd.weight",
    **{f"vision_tower.std_{part}": f"v.std_{part}" for part in ("bias", "scale")},
}
_UNREAD = ("v.token_embd.img_break",)  # a row of the text model, which has it itself
_SOUNDS = ("a.", "mm.a.")
_SWAPPED = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
_PAIRED = re.compile(r"vision_tower\.transformer\..*\.([qk])_proj\.weight")  # see `placement`


class MmprojWeights(Weights):
    """Tensors that were checked to fill each parameter once. A tensor is dequantised when it is read."""

    def __init__(self, file: GgufFile, tower: PreTrainedModel) -> None:
        """Raises GgufError where tensors are missing, left over or of another shape, and where memory is short."""
        self._file = file
        self._num_heads = tower.config.vision_config.num_attention_heads
        self._deepstack = getattr(tower.config.vision_config, "deepstack_visual_indexes", ())
        self._shapes = {name: tuple(parameter.shape) for name, parameter in tower.named_parameters()}
        self._tensors = dict(self._found())
        placed = {tensor.name for tensors in self._tensors.values() for tensor in tensors}
        for name in file.tensors:
            if name not in placed and name not in _UNREAD and not name.startswith(_SOUNDS):
                raise file.error(f"holds the tensor {name!r:.80}, for which its tower has no place")
        check_largest(tower, str(file.path), GgufError)

    def read(self, name: str) -> Float32Array:
        parts = [self._file.values(tensor.name) for tensor in self._tensors[name]]
        values = parts[0]
        if len(parts) > 1:
            values = np.concatenate(parts) if len(parts) == len("qkv") else np.stack(parts, 2)
        if self._is_of_channels_first(name):
            values = values.transpose(0, 2, 3, 1)
        if _PAIRED.fullmatch(name):
            values = values.reshape(self._num_heads, -1, 2, values.shape[1]).swapaxes(1, 2)
        if name.endswith("mm_soft_emb_norm.weight"):  # stored as what it multiplies by
            values = values - 1
        return np.ascontiguousarray(values).reshape(self._shapes[name])

    def stored_type(self, name: str) -> str:
        return " and ".join(dict.fromkeys(tensor.kind.name for tensor in self._tensors[name]))

    def block_type(self, name: str) -> BlockType | None:
        is_matrix = len(self._shapes[name]) == 2 and not self._is_of_channels_first(name)
        return BLOCK_TYPES.get(self.stored_type(name)) if is_matrix else None

    def blocks(self, name: str) -> Blocks:
        pieces, order = [Piece(tensor, 0, tensor.shape[0]) for tensor in self._tensors[name]], None
        if _PAIRED.fullmatch(name):
            order = np.arange(pieces[0].stop).reshape(self._num_heads, -1, 2).swapaxes(1, 2).reshape(-1)
        return read_blocks(self._file, pieces, order)

    def _found(self) -> Iterator[tuple[str, list[Tensor]]]:
        """The tensors of each parameter."""
        is_swapped = self._is_swapped()
        for name, shape in self._shapes.items():
            stored, wanted = self._stored_name(name), shape or (1,)
            if is_swapped:
                stored = re.sub("ffn_up|ffn_down", lambda found: _SWAPPED[found[0]], stored)
            if len(shape) == 5:  # of two moments, which are apart
                names, wanted = [stored, f"{stored}.1"], (*shape[:2], *shape[3:])
            elif ".attn_qkv." in stored and stored not in self._file.tensors:  # as those of Qwen2.5-VL are apart
                names = [stored.replace("_qkv.", f"_{part}.") for part in "qkv"]
                wanted = shape[0] // 3, *shape[1:]
            else:
                names = [stored]
            if self._is_of_channels_first(name):
                side = round((shape[1] // 3) ** 0.5)
                wanted = shape[0], 3, side, side
            yield name, [self._checked(each, wanted, name) for each in names]

    def _checked(self, stored: str, wanted: tuple[int, ...], name: str) -> Tensor:
        tensor = self._file.tensors.get(stored)
        if tensor is None:
            raise self._file.error(f"lacks the tensor {stored} of {name}")
        if tensor.shape != wanted:
            raise self._file.error(f"has {stored} of the shape {tensor.shape} instead of {wanted}")
        return tensor

    def _is_of_channels_first(self, name: str) -> bool:
        """Whether a matrix that takes patches, (E, rows * columns * 3), is stored as (E, 3, rows, columns)."""
        return self._stored_name(name) == f"{_PATCHES}.weight" and len(self._shapes[name]) == 2

    def _stored_name(self, name: str) -> str:
        """What converters call a parameter's tensor; the name itself where they have none for it."""
        name = name.replace("vision_model.", "vision_tower.", 1).replace(".linear.", ".")
        if name in _WHOLE:
            return _WHOLE[name]
        if found := _LAYER.fullmatch(name):
            layer, module, ending = found.groups()
            return f"v.blk.{layer}.{_OF_LAYERS.get(module, module)}.{ending}"
        if found := _DEEPSTACK.fullmatch(name):
            number, module, ending = found.groups()
            return f"v.deepstack.{self._deepstack[int(number)]}.{module}.{ending}"
        module, _, ending = name.rpartition(".")
        return f"{_OTHERS.get(module, module)}.{ending}"

    def _is_swapped(self) -> bool:
        """Whether both matrices of an MLP have each other's names, as converters gave them until May 2025."""
        layers = ("vision_tower.encoder.layers.0.mlp.fc2", "vision_model.encoder.layers.0.mlp.fc2")
        names = [f"{name}.weight" for name in (*layers, "visual.blocks.0.mlp.down_proj")]
        tensor = self._file.tensors.get("v.blk.0.ffn_down.weight")
        shape = next((self._shapes[name] for name in names if name in self._shapes), ())
        return tensor is not None and tensor.shape == shape[::-1] and tensor.shape != shape
