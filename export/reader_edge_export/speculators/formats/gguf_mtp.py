"""MTP among the tensors of a target's GGUF file: the layer that llama.cpp's converters put behind the others."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reader_edge_export.sources.folder.stored_tensors import StoredTensor
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.gguf_source import GgufSource
from reader_edge_export.sources.gguf.layer_sizes import architecture_of, later_tensors
from reader_edge_export.sources.gguf.metadata import Metadata
from reader_edge_export.sources.gguf.tensor_kinds import Tensor
from reader_edge_export.speculators.formats.folders import MTP_LAYER, SpeculatorFiles, check_num_layers
from reader_edge_runtime.package.package_parts import MTP

if TYPE_CHECKING:
    import torch

_GATED = ("gate", "up", "down")
_NAMES = {  # of a layer's tensors in the file -> of the module
    **{"nextn.eh_proj": "input_proj", "nextn.shared_head_norm": "final_layernorm"},
    **{"nextn.enorm": "token_layernorm", "nextn.hnorm": "hidden_layernorm"},
    **{"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"},
    **{"attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"},
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in _GATED},
    **{f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in _GATED},
    **{"ffn_gate_inp": "mlp.gate", "ffn_gate_inp_shexp": "mlp.shared_expert_gate"},
}
# Where they are not the target's.
_MATRICES = {"nextn.embed_tokens": "embed_tokens.weight", "nextn.shared_head_head": "lm_head.weight"}
_EXPERTS = {  # of all experts, whose matrices lie below each other -> those of one
    **{f"ffn_{part}_exps": (f"{part}_proj",) for part in _GATED},
    "ffn_gate_up_exps": ("gate_proj", "up_proj"),
}
_ROW = "mlp.shared_expert_gate"  # which files have as a vector


def gguf_mtp_source(target: GgufSource) -> SpeculatorFiles | None:
    """Of a target's own file; None where it has no layers for later tokens."""
    num_layers = target.config["num_hidden_layers"]
    later = sorted(later_tensors(target.file, num_layers))
    if not later:
        return None
    declared = Metadata(target.file, architecture_of(target.file)).size("nextn_predict_layers")
    check_num_layers(target.short_name, declared)
    num_experts = target.config.get("num_experts")
    tensors: dict[str, GgufRows] = {}
    stored: dict[str, str] = {}  # what each is read from
    for name in later:
        for each in _named(target.file, name, num_experts):
            if each.name in tensors:
                raise target.file.error(f"holds {stored[each.name]} and {name}, which stand for the same weights")
            tensors[each.name], stored[each.name] = each, name
    return SpeculatorFiles(MTP, target.file.path, target.config, tensors)


def _named(file: GgufFile, stored: str, num_experts: int | None) -> Iterator["GgufRows"]:
    """What a tensor holds, by the module's names; one without a place in it keeps its own."""
    tensor = file.tensors[stored]
    own = stored.split(".", 2)[2].removesuffix(".weight")
    if own in _EXPERTS and len(tensor.shape) == 3 and tensor.shape[0] == num_experts:
        parts = [f"{expert}.{part}" for expert in range(num_experts) for part in _EXPERTS[own]]
        num_rows, rest = divmod(tensor.shape[1], len(_EXPERTS[own]))
        if rest:
            raise file.error(f"holds {stored} with {tensor.shape[1]} rows for each expert's gate and up, an odd number")
        for number, part in enumerate(parts):
            name = f"{MTP_LAYER}mlp.experts.{part}.weight"
            yield GgufRows(name, file.path, (num_rows, tensor.shape[2]), "F32", file, tensor, number * num_rows)
        return
    name = f"{MTP_LAYER}{_NAMES[own]}.weight" if own in _NAMES else _MATRICES.get(own, stored)
    shape = (1, *tensor.shape) if _NAMES.get(own) == _ROW and len(tensor.shape) == 1 else tensor.shape
    # Files have what a norm multiplies by, modules what it adds to one.
    yield GgufRows(name, file.path, shape, "F32", file, tensor, shift=-1.0 if own.endswith("norm") else 0.0)


@dataclass(frozen=True, slots=True)
class GgufRows(StoredTensor):
    """Rows of a tensor in a GGUF file, from `first` on, dequantised when they are read. shift: is added to them."""

    source: GgufFile
    tensor: Tensor
    first: int = 0
    shift: float = 0.0

    def read(self) -> "torch.Tensor":
        return self._values(self.shape, self.first)

    def read_rows(self, start: int, stop: int) -> "torch.Tensor":
        if len(self.shape) == 1:
            return self.read()[start:stop]
        return self._values((stop - start, *self.shape[1:]), self.first + start)

    def _values(self, shape: tuple[int, ...], first: int) -> "torch.Tensor":
        import torch

        values = np.empty(shape, np.float32)
        self.source.read_into(values, self.tensor, first)
        values += np.float32(self.shift)
        return torch.from_numpy(values)
