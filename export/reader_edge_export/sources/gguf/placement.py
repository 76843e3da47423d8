"""Which tensors of a GGUF file fill each parameter of a module of transformers, and what converters did to them.

Shapes are compared on a module without memory, so that no size in a header is allocated that the file does not fill.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import gguf
import numpy as np
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from reader_edge_export.sources.folder.parameter_names import unread_modules
from reader_edge_export.sources.gguf.delta_heads import rows_by_key_head, value_columns, value_rows
from reader_edge_export.sources.gguf.expert_places import (
    expert_rows,
    expert_tensors,
    is_apart,
    is_of_experts,
    is_transposed,
)
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.layer_sizes import CLASSIFIER, NEMOTRON, architecture_of, unread_tensors
from reader_edge_export.sources.gguf.metadata import Metadata
from reader_edge_export.sources.gguf.rope import ROPE_TENSORS
from reader_edge_export.sources.gguf.tensor_kinds import Tensor
from reader_edge_runtime.adapters.gguf_adapter import PAIRED
from reader_edge_runtime.arrays import Float32Array, Int64Array

_SHIFTED = (
    "gemma",
    "gemma2",
    "gemma3",
    "qwen35",
    "qwen35moe",
    "qwen3next",
)  # store what a norm multiplies by, transformers what it adds to one
_DELTA = ("qwen35", "qwen35moe")
# Of Qwen3-Next's gated delta layers: what reads rows is one matrix in the module, by heads of keys, and two in files;
# older files have the module's.
_FUSED_DELTA, _UNFUSED_DELTA, _OLDER_DELTA = ".in_proj_qkvz.weight", ("attn_qkv", "attn_gate"), "ssm_in"
_XIELU = ".mlp.act_fn"  # whose slopes stand in the metadata
_GRANITE_4 = ("granitehybrid", "granitemoe")
_MAMBA2 = (*_GRANITE_4, "falcon-h1", *NEMOTRON)
_SHARED_MLP = {"input_linear": ("ffn_gate", "ffn_up"), "output_linear": ("ffn_down",)}  # of Granite 4
# Of names, what converters call them; what is added to those that have no ending.
_CALLED = {
    **{".dt_bias": ".dt_proj.bias", ".block_sparse_moe.router.": ".block_sparse_moe.router.layer."},
    ".gate.moe_statics.e_score_correction_bias": ".moe_statics.e_score_correction.bias",
    ".e_score_correction_bias": ".e_score_correction.bias",
}
# The two of what makes keys and values of a latent, by head: keys with inputs first, then values.
_OF_HEADS_PARAMETER, _BY_HEAD = ".kv_b_proj.weight", ("attn_k_b.weight", "attn_v_b.weight")
_SCALES = {".router.scale": "ffn_gate_inp.scale", ".router.per_expert_scale": "ffn_down_exps.scale"}  # of Gemma 4
_STACKED = {"altup_projections": "altup_proj", "altup_unembed_projections": "altup_unembd_proj"}  # of Gemma 3n, in one
_ENDINGS = {
    ".correct_output_scale": ".weight",
    ".layer_scalar": ".weight",
    ".sinks": ".weight",
    ".expert_bias": ".bias",
}
_COLUMNS = (".A_log", ".D")  # of Mamba2, one number a row


class Piece(NamedTuple):
    """Rows [start, stop) of a tensor."""

    tensor: Tensor
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        return self.stop - self.start


class Placement:
    """Which tensors of a file fill each parameter of a module: one, or several one below the other.

    A tensor is meant for one of them, or for query, key and value where they are fused.
    """

    def __init__(self, file: GgufFile, model: PreTrainedModel) -> None:
        self._file = file
        self._architecture = architecture_of(file)
        self._parameters = dict(model.named_parameters())
        self._transposed = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, Conv1D)}
        self._num_heads = {"q_proj": model.config.num_attention_heads}
        if self._architecture in PAIRED:
            self._num_heads["k_proj"] = model.config.num_key_value_heads
        kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == self._architecture)
        names = gguf.get_tensor_name_map(kind, model.config.num_hidden_layers)
        self._by_tensor = {
            stored: name
            for name, parameter in self._parameters.items()
            if not _is_slope(name)
            for stored in _stored_names(names, self._architecture, name, parameter.shape[0], file)
        }
        self._num_parts = Counter(self._by_tensor.values())
        self._num_stacked = getattr(model.config, "altup_num_inputs", 1) - 1
        unread = (names.get_name(name.removesuffix(".")) for name in unread_modules(model))
        self._unread = tuple(f"{name}.weight" for name in unread if name is not None)
        self._config = model.config

    def slopes(self) -> dict[str, Float32Array]:
        """Of each layer's xIELU, by name. Raises GgufError where the file gives more or fewer than there are layers."""
        values, found = Metadata(self._file, "xielu"), {}
        for name in filter(_is_slope, self._parameters):
            _, _, layer, *_, key = name.split(".")
            slopes = values.numbers(key)
            if len(slopes) != self._config.num_hidden_layers:
                raise self._file.error(f"gives xielu.{key} of {len(slopes)} layers")
            found[name] = np.full(self._parameters[name].shape, slopes[int(layer)], np.float32)
        return found

    def check(self) -> None:
        """Raise GgufError unless every parameter gets values of its shape once, and no tensor is left over."""
        filled: Counter[str] = Counter()
        for tensor in self.tensors():
            targets = self.targets(tensor.name)
            if not targets:
                raise self._file.error(
                    f"holds the tensor {tensor.name!r:.80}, for which its architecture has no place",
                    "give the model in Hugging Face format",
                )
            wanted = self._shape_of_tensor(targets)
            if tensor.shape != wanted:
                raise self._file.error(f"has {tensor.name} of the shape {tensor.shape} instead of {wanted}")
            filled.update(targets)
        for target in self._by_tensor:
            if filled[target] != 1:
                raise self._file.error(f"holds {filled[target]} tensors instead of one for {target}")

    def rows_of_parameters(self) -> dict[str, list[Piece]]:
        """What fills each parameter, from its first row on."""
        pieces = {}
        for tensor in self.tensors():
            start = 0
            for target in self.targets(tensor.name):
                stop = start + self._shape_of_target(target)[0]
                pieces[target] = Piece(tensor, start, stop)
                start = stop
        rows: dict[str, list[Piece]] = {}
        for target, name in self._by_tensor.items():
            rows.setdefault(name, []).append(pieces[target])
        return rows

    def places(self, tensor_name: str) -> list[tuple[str, slice]]:
        """The parameters that the rows of a tensor fill, one after the other, and which rows of each; [] for none."""
        targets, found = self.targets(tensor_name), []
        for target in targets:
            name, num_rows = self._by_tensor[target], self._shape_of_target(target)[0]
            others = [other for other, parameter in self._by_tensor.items() if parameter == name]
            start = sum(self._shape_of_target(other)[0] for other in others[: others.index(target)])
            found.append((name, slice(start, start + num_rows)))
        return found

    def tensors(self) -> Iterator[Tensor]:
        """The file's tensors that fill parameters."""
        later = unread_tensors(self._file, self._config.num_hidden_layers)
        others = {CLASSIFIER, *ROPE_TENSORS.get(self._architecture, ()), *later, *self._unread}
        return (self._shaped(tensor) for name, tensor in self._file.tensors.items() if name not in others)

    def _shaped(self, tensor: Tensor) -> Tensor:
        """Axes of one in front of others are lost where llama.cpp rewrites a file; matrices one by one become one."""
        targets = self.targets(tensor.name)
        wanted = self._shape_of_tensor(targets) if targets else ()
        is_stacked = len(targets) > 0 and targets[0] != tensor.name and wanted == _below(tensor.shape)
        return replace(tensor, shape=wanted) if is_stacked or wanted == (1, *tensor.shape) else tensor

    def _shape_of_tensor(self, targets: Sequence[str]) -> tuple[int, ...]:
        shapes = [self._shape_of_target(target) for target in targets]
        return sum(shape[0] for shape in shapes), *shapes[0][1:]

    def targets(self, tensor_name: str) -> list[str]:
        """The names of tensors that a tensor stands for, one after the other: its own, or those it is fused of."""
        if tensor_name in self._by_tensor:
            return [tensor_name]
        parts = [tensor_name.replace(".attn_qkv.", f".{part}.") for part in ("attn_q", "attn_k", "attn_v")]
        parts += [f"{tensor_name}.{number}" for number in range(self._num_stacked)]
        return [part for part in parts if part in self._by_tensor]

    def _shape_of_target(self, target: str) -> tuple[int, ...]:
        """Tensors below each other in a parameter are of one shape, those of experts below each other in each."""
        name = self._by_tensor[target]
        if is_of_experts(name):
            num_experts, *rest = self._parameters[name].shape
            num_outputs, *inputs = reversed(rest) if is_transposed(self._architecture, name) else rest
            if is_apart(target):
                return num_experts * num_outputs // self._num_parts[name], *inputs
            return num_experts, num_outputs // self._num_parts[name], *inputs
        if self.is_by_head(name):
            sizes = self._config.kv_lora_rank, self._config.qk_nope_head_dim
            sizes = sizes if target.endswith(_BY_HEAD[0]) else (self._config.v_head_dim, self._config.kv_lora_rank)
            return self._config.num_attention_heads, *sizes
        num_rows, *rest = self.stored_shape(name)
        if name.endswith(_FUSED_DELTA) and self._num_parts[name] > 1:
            num_gates = self._config.linear_num_value_heads * self._config.linear_value_head_dim
            return num_gates if target.endswith("attn_gate.weight") else num_rows - num_gates, *rest
        return num_rows // self._num_parts[name], *rest

    def is_by_head(self, name: str) -> bool:
        """Whether a matrix is stored as those of each head, keys (H, R, D) and values (H, V, R)."""
        return name.endswith(_OF_HEADS_PARAMETER) and self._num_parts[name] == len(_BY_HEAD)

    def stored_shape(self, name: str) -> tuple[int, ...]:
        """Of a parameter in the file, its parts joined."""
        shape = tuple(self._parameters[name].shape)
        if self._architecture in _MAMBA2 and name.endswith(_COLUMNS):
            return *shape, 1
        if self._architecture in _MAMBA2 and name.endswith((".mamba.norm.weight", ".mixer.norm.weight")):
            num_groups = self._config.n_groups if self._architecture in NEMOTRON else self._config.mamba_n_groups
            return num_groups, shape[0] // num_groups
        if len(shape) == 3:  # a convolution, whose channels are apart: (C, 1, K)
            return shape[0], shape[2]
        return shape[::-1] if name in self._transposed else shape

    def reverted(self, name: str, values: Float32Array) -> Float32Array:
        """A parameter's values as transformers has them: what llama.cpp's converter did to them is undone."""
        if self._architecture in _SHIFTED and name.endswith("norm.weight") and "linear_attn" not in name:
            values -= 1
        if name.endswith(".A_log"):  # decays are stored as they are used
            if not (values < 0).all():
                raise self._file.error(f"has decays that are not below nought in {name}")
            values = np.log(-values)
        order = self.row_order(name)
        if order is not None:
            values = values[order]
        columns = self.column_order(name)
        if columns is not None:
            values = values[:, columns]
        if name in self._transposed:
            return np.ascontiguousarray(values.T)
        return np.ascontiguousarray(values).reshape(self._parameters[name].shape)

    def num_experts(self, name: str) -> int:
        """How many experts a parameter of theirs has."""
        return int(self._parameters[name].shape[0])

    def reverted_expert(self, name: str, values: Float32Array) -> Float32Array:
        """One expert's part of a parameter, likewise."""
        order = self.expert_order(name)
        ordered = values if order is None else values[order]
        return ordered.T if is_transposed(self._architecture, name) else ordered

    def is_changed(self, name: str) -> bool:
        """Whether a matrix is not in the file as its module has it."""
        return name in self._transposed or self.row_order(name) is not None or self.column_order(name) is not None

    def row_order(self, name: str) -> Int64Array | None:
        """Which of its rows in the file each row of a parameter is; None where they are in order."""
        if self._architecture in _DELTA:
            return value_rows(self._config, name)
        if name.endswith(_FUSED_DELTA) and self._num_parts[name] > 1:
            return rows_by_key_head(self._config)
        module = name.split(".")[-2]
        if self._architecture not in PAIRED or module not in self._num_heads:
            return None
        rows = np.arange(self.stored_shape(name)[0])
        return rows.reshape(self._num_heads[module], -1, 2).swapaxes(1, 2).reshape(-1)

    def column_order(self, name: str) -> Int64Array | None:
        """The same of its columns."""
        return value_columns(self._config, name) if self._architecture in _DELTA else None

    def expert_order(self, name: str) -> Int64Array | None:
        """The same of each expert's rows."""
        return expert_rows(self._architecture, name, self._parameters[name].shape[-1])


def _stored_names(names: gguf.TensorNameMap, architecture: str, name: str, num_rows: int, file: GgufFile) -> list[str]:
    """Of the tensors that fill a parameter of so many rows, from its first row on."""
    if is_of_experts(name):
        return expert_tensors(name, architecture, num_rows, file.tensors)
    by_head = [f"blk.{name.split('.')[2]}.{part}" for part in _BY_HEAD] if name.endswith(_OF_HEADS_PARAMETER) else []
    if by_head and by_head[0] in file.tensors:
        return by_head
    if name.endswith(_FUSED_DELTA):
        block = f"blk.{name.split('.')[2]}."
        parts = (_OLDER_DELTA,) if f"{block}{_OLDER_DELTA}.weight" in file.tensors else _UNFUSED_DELTA
        return [f"{block}{part}.weight" for part in parts]
    module = name.split(".")[-2]
    if architecture in _GRANITE_4 and module in _SHARED_MLP:
        layer = name.split(".")[2]
        is_beside_experts = f"blk.{layer}.ffn_gate_inp.weight" in file.tensors
        end = "_shexp.weight" if is_beside_experts else ".weight"
        return [f"blk.{layer}.{stored}{end}" for stored in _SHARED_MLP[module]]
    if name.split(".")[1] in _STACKED:
        _, stack, number, _ = name.split(".")
        return [f"{_STACKED[stack]}.weight.{number}"]
    for ending, scale in _SCALES.items():
        if name.endswith(ending):
            return [f"blk.{name.split('.')[2]}.{scale}"]
    known = name.replace("model.", "backbone.", 1) if architecture in NEMOTRON else name
    for ours, theirs in _CALLED.items():
        known = known.replace(ours, theirs)
    stored = names.get_name(known, (".weight", ".bias")) or name
    return [stored + next((end for ending, end in _ENDINGS.items() if name.endswith(ending)), "")]


def _is_slope(name: str) -> bool:
    return name.rpartition(".")[0].endswith(_XIELU)


def _below(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of matrices (A, J, K) below each other."""
    return (shape[0] * shape[1], shape[2]) if len(shape) == 3 else shape
