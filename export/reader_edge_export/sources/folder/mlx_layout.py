"""What mlx-lm changes of models with convolutions or latents besides packing their matrices, undone.

It moves a convolution's channels to its end, adds one to norms whose module does so itself, cuts Granite's MLPs and
what makes keys and values of latents, and calls some matrices otherwise. Source: `sanitize` in mlx_lm/models/*.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from reader_edge_export.sources.folder.stored_tensors import StoredTensor
from reader_edge_runtime.errors import UnsupportedArchitectureError

if TYPE_CHECKING:
    import torch

_CONVOLUTIONS = (".conv1d.weight", ".conv.weight")
_WITH_ONE_ADDED = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
_NORMS = (
    *(".input_layernorm.weight", ".post_attention_layernorm.weight", ".q_norm.weight", ".k_norm.weight"),
    "model.norm.weight",
)
_NAMES: Mapping[str, Mapping[str, str]] = {  # by model type: parts of theirs, and of the makers'
    "nemotron_h": {".switch_mlp.fc1.": ".switch_mlp.up_proj.", ".switch_mlp.fc2.": ".switch_mlp.down_proj."},
    "lfm2_moe": {
        **{".feed_forward.gate_proj.": ".feed_forward.w1.", ".feed_forward.up_proj.": ".feed_forward.w3."},
        ".feed_forward.down_proj.": ".feed_forward.w2.",
    },
    "granitemoehybrid": {".mlp.down_proj.": ".shared_mlp.output_linear."},
}
_GATE, _UP, _BOTH = ".mlp.gate_proj.weight", ".mlp.up_proj.weight", ".shared_mlp.input_linear.weight"  # of Granite
_KEYS, _VALUES, _OF_LATENTS = ".embed_q.weight", ".unembed_out.weight", ".kv_b_proj.weight"


@dataclass(frozen=True, slots=True)
class LessOneTensor(StoredTensor):
    """A norm's weights without the one that was added; stored: with it. The difference is exact in fp32."""

    stored: StoredTensor

    def read(self) -> "torch.Tensor":
        return self.stored.read().float() - 1

    def read_rows(self, start: int, stop: int) -> "torch.Tensor":
        return self.stored.read_rows(start, stop).float() - 1


@dataclass(frozen=True, slots=True)
class JoinedTensor(StoredTensor):
    """A matrix whose first rows and last rows are stored apart."""

    first: StoredTensor
    last: StoredTensor

    def read(self) -> "torch.Tensor":
        import torch

        return torch.cat([self.first.read().float(), self.last.read().float()])

    def read_rows(self, start: int, stop: int) -> "torch.Tensor":
        return self.read()[start:stop]


@dataclass(frozen=True, slots=True)
class HeadsTensor(StoredTensor):
    """What makes keys and values (H (Dk + Dv), R) of latents. keys: (H, R, Dk). values: (H, Dv, R)."""

    keys: StoredTensor
    values: StoredTensor

    def read(self) -> "torch.Tensor":
        import torch

        heads = torch.cat([self.keys.read().float().mT, self.values.read().float()], dim=1)
        return heads.reshape(self.shape)

    def read_rows(self, start: int, stop: int) -> "torch.Tensor":
        return self.read()[start:stop]


def is_of_mlx(tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether a convolution has its channels last, (C, K, 1) in place of (C, 1, K), or keys are made by their own."""
    return any(name.endswith(_KEYS) or _is_turned(name, tensor) for name, tensor in tensors.items())


def check_layout(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> None:
    """Raise UnsupportedArchitectureError where mlx-lm changed what is not undone here."""
    if config["model_type"] == "falcon_h1" and is_of_mlx(tensors):
        raise UnsupportedArchitectureError(
            "The weights of this falcon_h1 model were converted for MLX, which multiplies matrices by factors of its "
            "config, which they do not tell: give the model as its makers publish it, or a GGUF file of it."
        )


def as_published(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """A folder's tensors as the model's makers write them, by their names; what mlx-lm did not write stays as it is."""
    if not is_of_mlx(tensors):
        return dict(tensors)
    names = _NAMES.get(config["model_type"], {})
    with_one_added = _NORMS if config["model_type"] in _WITH_ONE_ADDED else ()
    published: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        own = name
        for theirs, ours in names.items():
            own = own.replace(theirs, ours)
        if _is_turned(name, tensor):
            channels, width, _ = tensor.shape
            tensor = replace(tensor, shape=(channels, 1, width))  # in memory they are the same
        elif name.endswith(with_one_added):
            tensor = LessOneTensor(name, tensor.file, tensor.shape, tensor.dtype, tensor)
        published[name if own in tensors else own] = tensor  # of two for one place, one has none then
    if config["model_type"] == "granitemoehybrid":
        _join_mlps(published)
    _join_heads(published)
    return published


def _join_heads(tensors: dict[str, StoredTensor]) -> None:
    for name in [name for name in tensors if name.endswith(_KEYS)]:
        before = name.removesuffix(_KEYS)
        keys, values, joined = tensors[name], tensors.get(before + _VALUES), before + _OF_LATENTS
        if values is None or len(keys.shape) != 3 or len(values.shape) != 3 or joined in tensors:
            continue
        (num_heads, rank, key_size), value_size = keys.shape, values.shape[1]
        if values.shape == (num_heads, value_size, rank) and values.dtype == keys.dtype:
            del tensors[name], tensors[before + _VALUES]
            size = (num_heads * (key_size + value_size), rank)
            tensors[joined] = HeadsTensor(joined, keys.file, size, keys.dtype, keys, values)


def _join_mlps(tensors: dict[str, StoredTensor]) -> None:
    for gate in [name for name in tensors if name.endswith(_GATE)]:
        layer = gate.removesuffix(_GATE)
        first, last = tensors[gate], tensors.get(layer + _UP)
        is_pair = last is not None and (first.shape, first.dtype) == (last.shape, last.dtype) and len(first.shape) == 2
        if last is not None and is_pair and layer + _BOTH not in tensors:
            del tensors[gate], tensors[layer + _UP]
            num_rows, num_columns = first.shape
            size = (2 * num_rows, num_columns)
            tensors[layer + _BOTH] = JoinedTensor(layer + _BOTH, first.file, size, first.dtype, first, last)


def _is_turned(name: str, tensor: StoredTensor) -> bool:
    return name.endswith(_CONVOLUTIONS) and len(tensor.shape) == 3 and tensor.shape[1] > tensor.shape[2] == 1
