"""What mlx-lm changes of models with convolutions besides packing their matrices, undone.

It moves a convolution's channels to its end, adds one to norms whose module does so itself, cuts Granite's MLPs, and
calls some matrices otherwise. Source: `sanitize` in mlx_lm/models/*.py.
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
_SPLIT_LATENTS = ".self_attn.embed_q."


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


def is_of_mlx(tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether a convolution of these has its channels last: (C, K, 1) in place of (C, 1, K)."""
    return any(name.endswith(_CONVOLUTIONS) and _is_turned(tensor) for name, tensor in tensors.items())


def check_layout(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> None:
    """Raise UnsupportedArchitectureError where mlx-lm changed what is not undone here."""
    reason = None
    if config["model_type"] == "falcon_h1" and is_of_mlx(tensors):
        reason = "multiplies matrices by factors of its config, which they do not tell"
    elif any(_SPLIT_LATENTS in name for name in tensors):
        reason = "splits what makes keys and values of latents by heads"
    if reason is not None:
        raise UnsupportedArchitectureError(
            f"The weights of this {config['model_type']} model were converted for MLX, which {reason}: give the model "
            "as its makers publish it, or a GGUF file of it."
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
        if name.endswith(_CONVOLUTIONS) and _is_turned(tensor):
            channels, width, _ = tensor.shape
            tensor = replace(tensor, shape=(channels, 1, width))  # in memory they are the same
        elif name.endswith(with_one_added):
            tensor = LessOneTensor(name, tensor.file, tensor.shape, tensor.dtype, tensor)
        published[name if own in tensors else own] = tensor  # of two for one place, one has none then
    if config["model_type"] == "granitemoehybrid":
        _join(published)
    return published


def _join(tensors: dict[str, StoredTensor]) -> None:
    for gate in [name for name in tensors if name.endswith(_GATE)]:
        layer = gate.removesuffix(_GATE)
        first, last = tensors[gate], tensors.get(layer + _UP)
        is_pair = last is not None and (first.shape, first.dtype) == (last.shape, last.dtype) and len(first.shape) == 2
        if last is not None and is_pair and layer + _BOTH not in tensors:
            del tensors[gate], tensors[layer + _UP]
            num_rows, num_columns = first.shape
            size = (2 * num_rows, num_columns)
            tensors[layer + _BOTH] = JoinedTensor(layer + _BOTH, first.file, size, first.dtype, first, last)


def _is_turned(tensor: StoredTensor) -> bool:
    return len(tensor.shape) == 3 and tensor.shape[1] > tensor.shape[2] == 1
